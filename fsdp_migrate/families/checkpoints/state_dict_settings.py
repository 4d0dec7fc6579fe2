"""The kinds of state dict that FSDP1 has, and the calls that set them.

``FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, config)`` is read into a setting.
"""

from __future__ import annotations

import ast
import dataclasses
from dataclasses import dataclass, replace

from fsdp_migrate.analysis import dataclass_fields
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import (
    argument_of,
    class_of_method,
    default_of,
    gives_unknown_arguments,
    is_static,
)
from fsdp_migrate.analysis.values import Constant, External, Frame, Made, Value
from fsdp_migrate.analysis.version_tests import Reader
from fsdp_migrate.families.wrapping import strategies
from fsdp_migrate.families.wrapping.sharded_parts import Held, sharded_parts
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1 import model_values, state_types
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.syntax.expressions import bind_arguments
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.trees import block_of


@dataclass(frozen=True)
class Setting:
    """A state dict type with its two configurations; defaults as in ``fsdp/api.py``."""

    kind: str = "FULL"
    offload: bool = False
    rank0_only: bool = False
    optim_offload: bool = True
    optim_rank0_only: bool = False
    problem: str = ""  # why it cannot be told
    local: bool = False  # of a kind that FSDP2 does not have: SHARDED takes its place
    gone: bool = False  # what makes it goes with a branch for FSDP1: no running program knows it
    doubt: str = dataclasses.field(default="", compare=False)  # what may differ all the same
    # What makes it, where it cannot be told.
    set_by: ast.Call | None = dataclasses.field(default=None, compare=False)
    # The call of the project's own context manager that leads there.
    entered: ast.Call | None = dataclasses.field(default=None, compare=False)

    def __str__(self) -> str:
        words = [self.kind]
        words += ["offload_to_cpu"] if self.offload else []
        words += ["rank0_only"] if self.rank0_only else []
        return " ".join(words)


DEFAULT = Setting()
DIFFERENT = "set_state_dict_type is called with different settings"
OWN = "kept: SHARDED is set in a branch for FSDP1 alone, and FSDP2 models give shards so"
SOMETIMES = (
    "in one case FSDP1's branch, which goes, set FULL_STATE_DICT: FSDP2 models give shards here in "
    "every case, so gather them where whole tensors are needed"
)
LOCAL = (
    "each rank's state now holds its shard of every parameter: it is saved and loaded as before, "
    "but files in FSDP1's LOCAL form do not load"
)


KINDS = frozenset({"FULL", "LOCAL", "SHARDED"})


def has_group(bound: dict[str, ast.expr]) -> bool:
    """Whether a process group is given; None stands for the model's own."""
    group = bound.get("group")
    return group is not None and not (isinstance(group, ast.Constant) and group.value is None)


def read_setting(
    call: ast.Call, module: Module, study: Study, frame: Frame | None = None
) -> Setting:
    """The setting a ``state_dict_type`` or ``set_state_dict_type`` call makes, in one call of the
    function around it if ``frame`` says which."""
    setting = _read(call, module, study, frame)
    return replace(setting, set_by=call) if setting.problem else setting


def _read(call: ast.Call, module: Module, study: Study, frame: Frame | None) -> Setting:
    bound = bind_arguments(call, state_types.ARGUMENTS)
    if bound is None or "state_dict_type" not in bound:
        return Setting(problem="its arguments cannot be read")
    for given in list(bound.values())[1:]:
        if not dataclass_fields.is_written_in_sight(given, module, study.tracer):
            return Setting(problem=f"{ast.unparse(given)} is only known at run time")
    kinds = set()
    for value in study.tracer.evaluate(bound["state_dict_type"], module, frame):
        name = fsdp1.canonical(value.name) if isinstance(value, External) else None
        kinds.add(name or "?")
    if len(kinds) != 1 or "?" in kinds:
        spelled = ast.unparse(bound["state_dict_type"])
        return Setting(problem=f"the state dict type {spelled} is only known at run time")
    kind = kinds.pop().removeprefix("StateDictType.").removesuffix("_STATE_DICT")
    if kind not in KINDS:  # StateDictType[name], say
        spelled = ast.unparse(bound["state_dict_type"])
        return Setting(problem=f"the state dict type {spelled} is only known at run time")
    setting = Setting(kind=kind)
    if kind == "LOCAL":
        setting = Setting(kind="SHARDED", local=True)
    for name, optim in (("state_dict_config", False), ("optim_state_dict_config", True)):
        if name in bound:
            setting = _configured(setting, bound[name], module, study, frame, optim=optim)
    return setting


def possible_kinds(call: ast.Call, module: Module, study: Study) -> set[str]:
    """The kinds that a call may set where only the running program knows which: those that may get
    there, and where that is not known, those that the project names."""
    given = (bind_arguments(call, state_types.ARGUMENTS) or {}).get("state_dict_type")
    found = study.values(given, module) if given is not None else frozenset()
    names = {(fsdp1.canonical(v.name) if isinstance(v, External) else "") or "" for v in found}
    kinds = {name.removeprefix("StateDictType.").removesuffix("_STATE_DICT") for name in names}
    if kinds and kinds <= KINDS:
        return kinds
    return {kind for kind in KINDS if study.project.mentions(f"{kind}_STATE_DICT")}


def kind_of(call: ast.Call, module: Module, study: Study, frame: Frame | None) -> str:
    """The kind that a call sets when the function around it is called as in ``frame``; nothing if
    that is not known."""
    bound = bind_arguments(call, state_types.ARGUMENTS) or {}
    given = bound.get("state_dict_type")
    values = study.tracer.evaluate(given, module, frame) if given is not None and frame else ()
    names = {fsdp1.canonical(v.name) if isinstance(v, External) else None for v in values}
    name = names.pop() if len(names) == 1 else None
    return (name or "").removeprefix("StateDictType.").removesuffix("_STATE_DICT")


def _configured(
    setting: Setting,
    node: ast.expr,
    module: Module,
    study: Study,
    frame: Frame | None,
    *,
    optim: bool,
) -> Setting:
    """The setting with what a ``FullStateDictConfig(...)``, or one of its kind, says."""
    default = setting.optim_offload if optim else setting.offload
    found: set[tuple[bool, bool]] = set()
    values = study.tracer.evaluate(node, module, frame)
    for value in values:
        if isinstance(value, Constant) and value.value is None:
            continue
        if len(values) > 1 and _is_replaced(value, study):
            continue
        name = fsdp1.canonical(value.made_by) if isinstance(value, Made) else None
        if name is None or not name.endswith("StateDictConfig"):
            return replace(setting, problem=f"{ast.unparse(node)} is only known at run time")
        second = "rank0_only" if name.startswith("Full") else "_use_dtensor"
        is_call = isinstance(value.node, ast.Call)  # or a class that a field calls
        names = ("offload_to_cpu", second)
        bound = bind_arguments(of_kind(value.node, ast.Call), names) if is_call else {}
        if bound is None:
            return replace(setting, problem=f"the arguments of {name} cannot be read")
        is_local = name.startswith("LocalOptim")  # the one that stays where it is by default
        flags = {"offload_to_cpu": default and not is_local, "rank0_only": False}
        for field, expression in bound.items():
            flag = study.literal(expression, value.module) or _given(expression, value, study)
            if flag is None or not isinstance(flag.value, bool):
                spelled = ast.unparse(expression)
                return replace(setting, problem=f"{field}={spelled} is only known at run time")
            flags[field] = flag.value
        found.add((flags["offload_to_cpu"], flags["rank0_only"]))
    if len(found) > 1:
        return replace(setting, problem=f"{ast.unparse(node)} is only known at run time")
    offload, rank0 = found.pop() if found else (default, False)
    if optim:
        return replace(setting, optim_offload=offload, optim_rank0_only=rank0)
    return replace(setting, offload=offload, rank0_only=rank0)


def _is_replaced(value: Value, study: Study) -> bool:
    """Whether every torch from the target on assigns something else to a variable below the
    assignment of a value: ``config = A()``, ``if is_torch_2(): config = B()``."""
    table = value.module.table
    statement = table.statement(value.node)
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=assigned) if assigned is value.node:
            block = block_of(table.parents[statement], statement)
        case _:
            return False
    reader = Reader(study.project, study.target)
    for later in block[block.index(statement) + 1 :]:
        match later:
            case ast.If(test=test, body=body):
                names = {
                    target.id
                    for inner in body
                    if isinstance(inner, ast.Assign)
                    for target in inner.targets
                    if isinstance(target, ast.Name)
                }
                answer = reader.answer(test, value.module) if name in names else None
                if answer is not None and answer.holds:
                    return True
    return False


def _given(expression: ast.expr, value: Value, study: Study) -> Constant | None:
    """The constant that the call of a function gives for its parameter, or else its default."""
    frame, table = value.frame, value.module.table
    if frame is None or frame.partial is not None or not isinstance(expression, ast.Name):
        return None
    scope = table.within[expression].lookup(expression.id)
    binding = scope.bindings[expression.id] if scope is not None else []
    is_own = scope is not None and scope.node is frame.function and len(binding) == 1
    if not is_own or not isinstance(binding[0].node, ast.arg):
        return None
    function, call = frame.function, frame.call
    if gives_unknown_arguments(call):
        return None
    is_method = class_of_method(function, value.module) is not None and not is_static(function)
    given = argument_of(call, function, expression.id, bound=is_method)
    given = given or default_of(binding[0].node, function)
    return study.literal(given, frame.module) if isinstance(given, ast.Constant) else None


def kept_own(
    setting: Setting, site: Site, rule: str, models: frozenset[Constructor], study: Study
) -> Decision | None:
    """A state is kept as it is where a branch for FSDP1 alone, which goes, set models to shards:
    FSDP2 models give them by themselves."""
    if not setting.gone or setting.kind != "SHARDED" or not isinstance(site.node, ast.Call):
        return None
    if setting.problem == DIFFERENT:
        return study.rewritten(site, rule, OWN, models=models, review=SOMETIMES)
    return study.kept_as_is(site, rule, OWN, models=models)


def is_for_run_time(setting: Setting, study: Study) -> bool:
    """Whether migrated code leaves it to the running program which kind of state it is."""
    return bool(setting.problem) and not setting.gone and study.run_time_states


def effective_setting(setting: Setting, models: frozenset[Constructor], study: Study) -> Setting:
    """The setting that a model's own state has in effect; that of its optimizer may differ.

    Under NO_SHARD FSDP1 gave the whole state to every rank and moved it nowhere, whatever was set.
    """
    return DEFAULT if strategies.is_replicated(models, study) and not setting.problem else setting


def is_context(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether an expression is a call of FSDP1's ``state_dict_type`` context manager."""
    if not isinstance(node, ast.Call) or state_types.refused(node):
        return False
    return is_static_call(node, "state_dict_type", module, study)


def is_static_call(call: ast.Call, name: str, module: Module, study: Study) -> bool:
    """Whether a static method of FSDP1 is called: on the class, or on a model."""
    func = call.func
    if f"{fsdp1.FSDP}.{name}" in {fsdp1.canonical(q) for q in study.external(func, module)}:
        return True
    if not isinstance(func, ast.Attribute) or func.attr != name:
        return False
    if study.models(func.value, module).constructors:
        return True
    found = study.values(func.value, module)
    return any(model_values.is_class_of_models(v, study.tracer) for v in found)


def models_concerned(node: ast.expr | None, module: Module, study: Study) -> frozenset[Constructor]:
    """The models in ``node``, which a static method is given: one itself, or what holds some."""
    parts = sharded_parts(node, module, study) if node is not None else Held()
    return parts.constructors or study.models_of_static(node, module).constructors


def config_users(site: Site) -> list[ast.Name] | None:
    """The uses of the name a configuration object is assigned to; None when it has no name."""
    table = site.module.table
    statement = table.parents[site.node]
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    if not isinstance(target, ast.Name):
        return None
    return table.reads(target.id, table.within[target])
