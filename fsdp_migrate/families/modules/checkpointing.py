"""Activation checkpointing that is applied to a model after it was wrapped, as FSDP1 code has it.

FSDP1's result is a unit around the checkpointed block. ``fully_shard`` makes no wrapper, so the
same order puts the checkpoint around the unit: same losses and collectives on torch 2.13, but the
block is no ``FSDPModule`` any more where the model is indexed, and before 2.11 a block that runs
twice before its backward can fail (pytorch/pytorch#153354). Where the code is straight, the model
is checkpointed first and the wrappers are sharded, the order of torchtitan.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, External, Function, Made, Value
from fsdp_migrate.families.modules import own_checkpoints
from fsdp_migrate.families.training_loop.call_order import runs_before_sharding
from fsdp_migrate.families.wrapping.model_contents import contents
from fsdp_migrate.families.wrapping.policy_loops import class_tuple
from fsdp_migrate.families.wrapping.sharded_parts import sharded_parts
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1 import model_values
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.planning.shard_plan import ShardPlan
from fsdp_migrate.syntax.expressions import last_name, names_in
from fsdp_migrate.syntax.trees import FUNCTIONS, block_of

LATE = Construct.parse("late activation checkpointing")
REENTRANT = Construct.parse("reentrant activation checkpointing")
PACKAGE = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
APPLY = frozenset({f"{PACKAGE}.apply_activation_checkpointing"})
WRAPPER = f"{PACKAGE}.checkpoint_wrapper"
REENTRANT_KIND = f"{PACKAGE}.CheckpointImpl.REENTRANT"
CHECKPOINT = frozenset({"torch.utils.checkpoint.checkpoint"})
CONDITIONS = (ast.If, ast.IfExp, ast.For, ast.While, ast.Try, ast.Match, ast.Lambda, *FUNCTIONS)
# What neither changes a model nor draws a number.
QUIET = (
    "logging.",
    "torch.distributed.barrier",
    "torch.cuda.empty_cache",
    "torch.cuda.synchronize",
)
NO_GRADIENTS = frozenset({"no_grad", "inference_mode"})


def find_late_checkpointing(study: Study, module: Module) -> Iterator[Site]:
    """Sites for the checkpointing of models that are FSDP models already."""
    if "apply_activation_checkpointing" not in module.source.text:
        return
    for call in module.table.calls:
        if study.external(call.func, module) & APPLY:
            model = _argument(call, 0, "model")
            found = checkpointed_models(model, module, study) if model is not None else None
            if found and not runs_before_sharding(call, module, found, study):
                yield Site(LATE, module, call, call, model)


def find_reentrant_checkpointing(study: Study, module: Module) -> Iterator[Site]:
    """Sites for reentrant checkpointing of what may be sharded, where it may run twice before its
    backward: a unit is done with its first backward then, and what the second gives is lost.

    A checkpoint of the project's own is one where it is not seen that all that it runs are parts of
    modules that run once: who writes one runs modules in parts, which nothing of torch's does.
    """
    if not study.constructors:
        return
    if module.mentions("enable_grad"):
        for call in module.table.calls_by_name.named("backward"):
            if _may_lose(call, module, study):
                yield Site(REENTRANT, module, call, call)
    if not module.mentions("REENTRANT", "checkpoint"):
        return
    found: list[ast.expr] = []
    for kind in module.table.attributes_by_name.named("REENTRANT"):
        asked = isinstance(module.table.parents[kind], ast.Compare)
        if not asked and REENTRANT_KIND in study.external(kind, module):
            found.append(kind)
    for call in module.table.calls_by_name.named("checkpoint"):
        if study.external(call.func, module) & CHECKPOINT and _is_of_units(call, module, study):
            found.append(call)
    # What runs the models is asked of all the project, and few files have such checkpointing.
    if found and may_run_twice(frozenset(study.reached_from(module)), study):
        yield from (Site(REENTRANT, module, node, node) for node in found)


def _may_lose(call: ast.Call, module: Module, study: Study) -> bool:
    """Whether a backward is one of a checkpoint of the program's own, around what may run twice."""
    cls = own_checkpoints.own_checkpoint(call, module, study)
    if cls is None:
        return False
    once = own_checkpoints.runs_each_once(cls, module, study)
    return not once or may_run_twice(frozenset(study.reached_from(module)), study)


def _is_of_units(call: ast.Call, module: Module, study: Study) -> bool:
    """Whether a checkpoint is reentrant, and goes around whole modules: a method of a module's own
    runs inside of it, when its parameters are gathered."""
    given = [k.value for k in call.keywords if k.arg == "use_reentrant"]
    told = study.literal(given[0], module) if given else None
    if (given and (told is None or not told.value)) or not call.args:
        return False
    return not any(isinstance(v, Function) for v in study.values(call.args[0], module))


def checkpointed_models(model: ast.expr, module: Module, study: Study) -> frozenset[Constructor]:
    """The models that are checkpointed with a module: itself, or those that it holds."""
    if study.traced(model, module):
        return study.models(model, module).constructors
    return sharded_parts(model, module, study).constructors


@dataclass(frozen=True, eq=False)
class Checkpointing:
    """``apply_activation_checkpointing`` on blocks of some classes, as a statement of its own."""

    statement: ast.stmt
    classes: frozenset[object]


def following_checkpointing(constructor: Constructor, study: Study) -> Checkpointing | None:
    """The checkpointing behind which ``constructor`` can shard as well: in the same straight run
    of statements, of blocks chosen by class, with nothing in between that uses the model."""
    module, statement = constructor.module, constructor.statement
    block = block_of(module.table.parents[statement], statement)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = access_path(statement.targets[0])
    if target is None or statement.value is not constructor.call:
        return None
    bound = names_in(statement)
    for other in block[block.index(statement) + 1 :]:
        call = other.value if isinstance(other, ast.Expr) else None
        if isinstance(call, ast.Call) and study.external(call.func, module) & APPLY:
            return _read(call, other, target, module, study)
        if not _leaves_models(other, module, study):
            return None
        if _touches(other, target, bound):
            return None
    return None


def _leaves_models(statement: ast.stmt, module: Module, study: Study) -> bool:
    """Whether a statement does nothing to a model that it does not name: it defines something, says
    something, or waits."""
    match statement:
        case ast.Assign() | ast.FunctionDef() | ast.Import() | ast.ImportFrom() | ast.Pass():
            return True
        case ast.If(body=body, orelse=orelse):
            return all(_leaves_models(each, module, study) for each in (*body, *orelse))
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id="print"))):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner) as called)):
            names = study.external(called, module)
            made = [getattr(v, "made_by", "") for v in study.values(owner, module)]
            logs = bool(made) and all(name == "logging.getLogger" for name in made)
            return logs or (bool(names) and all(n.startswith(QUIET) for n in names))
    return False


def move_sharding_behind(plan: ShardPlan, found: Checkpointing, study: Study) -> None:
    """Shard the wrappers around the units' classes, once they are there, if it comes to the same.

    Nothing happens where units and checkpointed blocks are chosen differently.
    """
    targets = plan.targets
    if targets is None or targets.classes is None or plan.ignored is not None or plan.from_rank0:
        return
    module = plan.constructor.module
    same = class_set(targets.classes, module, study) == found.classes
    if not same or not plan.is_in_place or not isinstance(plan.constructor.statement, ast.Assign):
        return
    classes = plan.unit_classes or class_tuple(targets.classes)
    targets.predicate = lambda v: code(
        'isinstance(getattr({v}, "_checkpoint_wrapped_module", None), {c})', v=v, c=classes
    )
    targets.may_be_root = False
    plan.behind = found.statement


def may_run_twice(models: frozenset[Constructor], study: Study) -> bool:
    """Whether a module of these models may run twice before a backward; True when the code that
    runs them does not tell. Models of which not all is in sight are taken to run as others do."""
    found = [
        (call, module)
        for call, module in study.cache(_runs_of_models)
        if study.models(call.func, module).constructors & models
    ]
    trained = [(c, m) for c, m in found if not _without_gradients(c, m)]
    functions = [enclosing_function(m, c) for c, m in trained]
    if not trained or len(set(functions)) < len(functions):
        return True
    if not all(_has_backward_of_its_own(c, m) for c, m in trained):
        return True
    made = [contents(w.wrapped, w.module, study) for model in models for w in model.wraps]
    return any(_runs_a_part_twice(cls.node) for each in made for cls in each.classes)


def _runs_of_models(study: Study) -> list[tuple[ast.Call, Module]]:
    """The calls of what is an FSDP1 model, may turn out to be one made by ``wrap``, or is taken for
    one, whatever form its constructor takes."""
    return [
        (call, module)
        for module in study.project.modules
        for call in module.table.calls
        if any(_may_be_model(value, study) for value in study.values(call.func, module))
        or model_values.is_taken_for_model(call.func, module, study.tracer)
    ]


def _may_be_model(value: Value, study: Study) -> bool:
    made_by = value.made_by if isinstance(value, Made) else ""
    return fsdp1.canonical(made_by) == "wrap" or model_values.is_model(value, study.tracer)


def _without_gradients(call: ast.Call, module: Module) -> bool:
    """Whether a call stands under ``torch.no_grad()``, as a decorator or a context."""
    for parent in module.table.ancestors(call):
        around: list[ast.expr] = []
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            around = parent.decorator_list
        elif isinstance(parent, ast.With):
            around = [item.context_expr for item in parent.items]
        if any(last_name(e.func) in NO_GRADIENTS for e in around if isinstance(e, ast.Call)):
            return True
    return False


def _has_backward_of_its_own(call: ast.Call, module: Module) -> bool:
    """Whether a backward follows in the same function and, in a loop, in the same turn of it."""
    around = list(module.table.ancestors(call))
    for parent in around:
        if isinstance(parent, (ast.For, ast.While, *FUNCTIONS)):
            return any(
                isinstance(node, ast.Attribute)
                and node.attr == "backward"
                and node.lineno >= call.lineno
                and all(
                    above in around or not isinstance(above, CONDITIONS)
                    for above in module.table.ancestors(node)
                )
                for node in ast.walk(parent)
            )
    return False


def _run(call: ast.Call) -> ast.expr:
    """What a call runs: ``block`` of ``block(x)`` and of ``checkpoint(block, x)``."""
    by_checkpoint = last_name(call.func) == "checkpoint" and call.args
    return call.args[0] if by_checkpoint else call.func


def _runs_a_part_twice(cls: ast.ClassDef) -> bool:
    """Whether a method calls a module of ``self`` in two places, or in every turn of a loop."""
    for method in cls.body:
        if not isinstance(method, ast.FunctionDef):
            continue
        called: set[str] = set()
        loops = [n for n in ast.walk(method) if isinstance(n, (ast.For, ast.While))]
        looped = {n for loop in loops for n in ast.walk(loop)}
        for node in ast.walk(method):
            path = access_path(_run(node)) if isinstance(node, ast.Call) else None
            if path is None or not path.startswith("self.") or path.count(".") > 1:
                continue
            if path in called or node in looped:
                return True
            called.add(path)
    return False


def _touches(statement: ast.stmt, target: str, bound: set[str]) -> bool:
    """Whether a statement uses the model at ``target`` or changes a name in ``bound``."""
    for node in ast.walk(statement):
        if isinstance(node, (ast.Name, ast.Attribute)) and access_path(node) == target:
            return True
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in bound:
            return True
    return False


def _read(
    call: ast.Call, statement: ast.stmt, target: str, module: Module, study: Study
) -> Checkpointing | None:
    model = _argument(call, 0, "model")
    check = _argument(call, 2, "check_fn")
    if model is None or access_path(model) != target or check is None:
        return None
    wrapper = _argument(call, 1, "checkpoint_wrapper_fn")
    if wrapper is not None and not _is_torchs(wrapper, module, study):
        return None
    found = [_tested(v, study) for v in study.values(check, module)]
    if len(found) != 1 or found[0] is None:
        return None
    return Checkpointing(statement, found[0])


def _argument(call: ast.Call, index: int, name: str) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    return call.args[index] if index < len(call.args) else None


def _is_torchs(wrapper: ast.expr, module: Module, study: Study) -> bool:
    """Whether a function is torch's ``checkpoint_wrapper``, perhaps with arguments bound."""
    found = list(study.values(wrapper, module))
    return bool(found) and all(_makes_wrappers(v, study) for v in found)


def _makes_wrappers(value: Value, study: Study) -> bool:
    match value:
        case External(name=name):
            return name == WRAPPER
        case Made(node=ast.Call(args=[first, *_]), made_by="functools.partial"):
            return WRAPPER in study.external(first, value.module)
    return False


def _tested(value: Value, study: Study) -> frozenset[object] | None:
    """The classes of ``lambda m: isinstance(m, C)`` or of a function that only returns that."""
    if not isinstance(value, Function):
        return None
    node = value.node
    if isinstance(node, ast.Lambda):
        test: ast.expr | None = node.body
    else:
        body = node.body[1:] if ast.get_docstring(node) else node.body
        test = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None
    match test:
        case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name(id=tested), classes]):
            if [a.arg for a in node.args.args] == [tested]:
                return class_set(classes, value.module, study)
    return None


def class_set(classes: ast.expr, module: Module, study: Study) -> frozenset[object] | None:
    """The classes an expression spells out, each by what it is; None when one is not known."""
    spelled = isinstance(classes, (ast.Tuple, ast.Set, ast.List))
    items = classes.elts if spelled else [classes]  # type: ignore[attr-defined]
    found: set[object] = set()
    for item in items:
        values = list(study.values(item, module))
        match values:
            case [Class(node=node)]:
                found.add(node)
            case [External(name=name)]:
                found.add(name)
            case _:
                return None
    return frozenset(found)
