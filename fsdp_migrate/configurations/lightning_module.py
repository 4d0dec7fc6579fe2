"""The one ``LightningModule`` that a Trainer runs, and the hook that shards it.

The simplest programs alone: one Trainer, one module of the project's own, nothing that asks for
parameters or states by itself, and no hook that was written for FSDP1.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Made
from fsdp_migrate.configurations import plugin_calls
from fsdp_migrate.configurations.frameworks.lightning import Target
from fsdp_migrate.configurations.lightning_calls import StrategyCall, runners
from fsdp_migrate.configurations.lightning_hook import (
    ELEMENTWISE,
    FSDP,
    Hook,
    NotSimple,
    Place,
    is_global,
)
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code, join
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.syntax.expressions import last_name

BASES = frozenset(
    f"{package}.LightningModule"
    for package in ("lightning", "lightning.pytorch", "pytorch_lightning", "lightning.pytorch.core")
)
REGISTER = "register_fsdp_forward_method"
STEPS = ("training_step", "validation_step", "test_step", "predict_step")
# What a program may do to the model itself, where sharded parameters are others than FSDP1's.
CALLS = ("state_dict", "load_state_dict", "save_pretrained", "clip_grad_norm_", "compile", "save")
SETTINGS = ("plugins", "gradient_clip_algorithm", "sync_batchnorm")
# Callbacks that ask for no parameters and no gradients. ModelCheckpoint asks the strategy to save.
CALLBACKS = (
    *("ModelCheckpoint", "EarlyStopping", "LearningRateMonitor", "DeviceStatsMonitor", "Timer"),
    *("TQDMProgressBar", "RichProgressBar", "ModelSummary", "RichModelSummary"),
)
HARMLESS = frozenset(
    f"{package}.{name}"
    for package in ("lightning.pytorch", "pytorch_lightning")
    for name in (f"callbacks.{each}" for each in CALLBACKS)
)
PARAMETERS = ("parameters", "named_parameters", "grad")
SCHEDULERS = "torch.optim.lr_scheduler."


def module_of(found: StrategyCall, study: Study) -> Class:
    """The module that gets the hook.

    Raises:
        NotSimple: which it is is not known, or it does what the hook would have to know.
    """
    if found.fabric or found.runner is None:
        raise NotSimple("which models it is for is not known")
    if len(list(runners(study))) != 1:
        raise NotSimple("there is another Trainer, and configure_model is called under each")
    for name in SETTINGS:
        if found.of_runner(name) is not None:
            raise NotSimple(f"the Trainer has {name}")
    _check_callbacks(found, study)
    if study.constructors:
        raise NotSimple("the program also wraps models itself")
    if plugin_calls.of_version_1(study):
        raise NotSimple(plugin_calls.of_version_1(study))
    classes = [c for m in study.project.modules for c in _lightning_modules(m, study)]
    if len(classes) != 1:
        raise NotSimple(f"{len(classes)} classes are LightningModules, and it may run any of them")
    _check(classes[0])
    _check_optimizer(classes[0], study)
    name = classes[0].node.name
    for module in study.project.modules if study.project.mentions(name) else ():
        for node in ast.walk(module.source.tree) if module.mentions(name) else ():
            if isinstance(node, ast.ClassDef) and name in map(last_name, node.bases):
                raise NotSimple(f"{node.name} derives from {name}")
    for module in study.project.modules:
        for call in module.table.calls_by_name.of(CALLS):
            raise NotSimple(f"{module.path.name} calls {ast.unparse(call.func)}")
        for attribute in module.table.attributes_by_name.of(("automatic_optimization",)):
            raise NotSimple(f"{ast.unparse(attribute)} is set")
    return classes[0]


def _check_callbacks(found: StrategyCall, study: Study) -> None:
    given = found.of_runner("callbacks")
    if given is None:
        return
    for one in given.elts if isinstance(given, ast.List | ast.Tuple) else [given]:
        made = study.values(one, found.runner_module or found.module)
        if not made or not all(isinstance(v, Made) and v.made_by in HARMLESS for v in made):
            raise NotSimple(f"the Trainer has callbacks={ast.unparse(one)}")


def _lightning_modules(module: Module, study: Study) -> list[Class]:
    nodes = [n for n in ast.walk(module.source.tree) if isinstance(n, ast.ClassDef)]
    return [
        Class(node, module)
        for node in nodes
        if any(study.external(base, module) & BASES for base in node.bases)
    ]


def _check(cls: Class) -> None:
    node = cls.node
    if len(node.bases) != 1 or node.keywords or node.decorator_list:
        raise NotSimple(f"{node.name} is not a plain class")
    if not is_global(cls):
        raise NotSimple(f"{node.name} is made in a function")
    names = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
    for name in names:
        if name.startswith(("configure_", "clip_")) and name != "configure_optimizers":
            raise NotSimple(f"{node.name} has a method {name}")
    if not names & set(STEPS):
        raise NotSimple(f"{node.name} has no step of its own")
    if "trainer.model" in ast.unparse(node):
        raise NotSimple(f"{node.name} asks for trainer.model")


def _check_optimizer(cls: Class, study: Study) -> None:
    """What asks for single parameters or gradients sees others than FSDP1's."""
    makes = next(
        (n for n in cls.node.body if getattr(n, "name", "") == "configure_optimizers"), None
    )
    if makes is None:
        raise NotSimple(f"{cls.node.name} has no configure_optimizers of its own")
    inside = set(ast.walk(makes))
    for node in ast.walk(cls.node):
        asks = isinstance(node, ast.Attribute) and node.attr in PARAMETERS
        if asks and node not in inside:
            raise NotSimple(f"{cls.node.name} asks for {ast.unparse(node)}")
    calls = (node for node in inside if isinstance(node, ast.Call))
    names = {name for call in calls for name in study.external(call.func, cls.module)}
    names = {name for name in names if not name.startswith(SCHEDULERS)}
    if not names or not names <= ELEMENTWISE:
        raise NotSimple("its optimizer is none of torch's that go element by element")


def write_hook(cls: Class, found: StrategyCall, target: Target, study: Study, to: Proposal) -> None:
    """Give the module its ``configure_model``.

    Raises:
        NotSimple: a class of the policy is not to be named where the module stands.
    """
    module, node = cls.module, cls.node
    names = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
    steps = ", ".join(f'"{step}"' for step in STEPS if step in names)
    steps += "," if steps.count('"') == len('""') else ""
    at = Place(module, node)
    hook = Hook(found, target, study, to)
    lines = [
        code("def configure_model(self):"),
        code("    if isinstance(self, {f}):", f=to.name(module, FSDP, "FSDPModule", node)),
        code("        return"),
        *hook.lines("self", "self.device_mesh", at),
        code("    for step in ({s}):", s=steps),
        code("        {r}(self, step)", r=to.name(module, FSDP, REGISTER, node)),
    ]
    to.insert_after(module, node.body[-1], join("\n", lines))
