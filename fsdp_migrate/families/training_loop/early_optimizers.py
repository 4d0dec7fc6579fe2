"""Optimizers that are built before the model whose parameters they hold is wrapped.

``fully_shard`` replaces every parameter. An optimizer built before it keeps the old ones and
trains nothing, without an error (pytorch/pytorch#149205 and accelerate's ``benchmarks/fsdp2``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.compiled import COMPILING
from fsdp_migrate.analysis.values import Class, External, Value
from fsdp_migrate.families.training_loop import schedulers
from fsdp_migrate.families.training_loop.applied_functions import MAP, asked_of_each
from fsdp_migrate.families.training_loop.later_wraps import function_scope, later_wraps
from fsdp_migrate.fsdp1 import model_values
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.planning.shard_plan import IN_PLACE_METHODS
from fsdp_migrate.syntax.expressions import given_arguments, last_name
from fsdp_migrate.syntax.kinds import method_of, of_kind
from fsdp_migrate.syntax.trees import block_of, walk

PARAMETER_METHODS = frozenset({"parameters", "named_parameters"})
OPTIMIZER_NAME = re.compile(
    r"optim|adam|ademamix|sgd|adagrad|adafactor|lbfgs|rmsprop|rprop|lion|lamb|lars|muon", re.I
)
SAME_PARAMETERS = IN_PLACE_METHODS - {"requires_grad_"}  # which an optimizer may ask for
LEAVING = (ast.Break, ast.Continue, ast.Return, ast.Yield, ast.YieldFrom)
TELLING = frozenset({"debug", "id", "info", "isinstance", "len", "print", "repr", "str", "type"})
OF_OPTIMIZERS = re.compile(r"(?:^|\.)optim(?!um\b)")  # optimum is a library about models
# What stands beside optimizers, in torch.optim and in other libraries' ``optimization``.
BESIDE = re.compile(r"lr_scheduler|swa_utils|\.[a-z_]*sched[a-z_]*$")
NOT_BUILT = re.compile(r"state|sched|^(load|save|log|print|step|zero)", re.I)


@dataclass(frozen=True, eq=False)
class EarlyOptimizer:
    """An optimizer that is built from ``parameters`` before ``wrap`` shards their model."""

    optimizer: ast.Call
    model: ast.expr  # or models in a list
    wraps: tuple[ast.Call, ...]  # constructors, or calls of project functions that wrap, in order
    given_to: str = ""  # a call that was given it before it was made anew behind the wrap


def find_early_optimizers(study: Study, module: Module) -> Iterator[Site]:
    """Sites for optimizers that are built before their model is wrapped in the same scope."""
    if not study.constructors:
        return
    for call in given_parameters(module):
        if not any(is_optimizer(v, study) for v in study.values(call.func, module)):
            continue
        found = early_optimizer(call, module, study)
        if found is not None:
            yield Site(Construct.parse("early optimizer"), module, call, call, found.model)


def given_parameters(module: Module) -> list[ast.Call]:
    """The calls that are given ``x.parameters()``, in order."""
    table = module.table
    found: dict[ast.Call, None] = {}
    asking: list[ast.expr] = [*table.attributes_by_name.of(PARAMETER_METHODS)]
    mapped = table.calls_by_name.named(MAP)
    asking += [call for call in mapped if asked_of_each(call, PARAMETER_METHODS) is not None]
    for each in asking:
        child: ast.AST = each
        for parent in table.ancestors(each):
            if isinstance(parent, ast.stmt):
                break
            if isinstance(parent, ast.Call) and child is not parent.func:
                found[parent] = None
            child = parent
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))


def named_like_an_optimizer(call: ast.Call) -> bool:
    """Whether what is called has the name of an optimizer, or of what builds one."""
    return is_optimizer_name(last_name(call.func))


@cache
def is_optimizer_name(name: str) -> bool:
    """Whether a name is an optimizer's, or a function's that builds one: ``build_optimizer``."""
    return bool(OPTIMIZER_NAME.search(name)) and not NOT_BUILT.search(name)


def is_optimizer(callee: Value, study: Study) -> bool:
    """Whether calling ``callee`` gives a torch optimizer."""
    if isinstance(callee, Class):
        bases = study.tracer.external_bases(callee)
        return any(name.startswith("torch.optim.") and not BESIDE.search(name) for name in bases)
    name = callee.name if isinstance(callee, External) else ""
    return OF_OPTIMIZERS.search(name) is not None and not BESIDE.search(name)


def parameter_calls(call: ast.Call) -> Iterator[ast.Call]:
    """Every ``x.parameters()`` inside the arguments of a call."""
    for argument in given_arguments(call):
        for node in walk(argument):
            method = node.func if isinstance(node, ast.Call) else None
            if isinstance(method, ast.Attribute) and method.attr in PARAMETER_METHODS:
                yield of_kind(node, ast.Call)


def models_asked(call: ast.Call) -> Iterator[ast.expr]:
    """The models whose parameters the arguments of a call ask for, or what they are listed in."""
    for parameters in parameter_calls(call):
        yield method_of(parameters).value
    for node in (n for argument in given_arguments(call) for n in walk(argument)):
        asked = asked_of_each(node, PARAMETER_METHODS)
        if asked is not None:
            yield asked[0]


def early_optimizer(call: ast.Call, module: Module, study: Study) -> EarlyOptimizer | None:
    """The wrap that follows the call of an optimizer in the same scope, if there is one."""
    built = module.table.statement(call)
    order = module.flow(function_scope(call, module)).order
    for model in models_asked(call):
        wraps: list[ast.Call] = []
        anew: list[EarlyOptimizer] = []
        for wrap in later_wraps(model, built, module, study):
            statement = module.table.statement(wrap)
            given_to = _given_before_made_anew(built, statement, order, module)
            if given_to is None:
                wraps.append(wrap)
            elif given_to:
                anew.append(EarlyOptimizer(call, model, (wrap,), given_to[0]))
        seen = all(w in study.constructors or study.models(w, module).constructors for w in wraps)
        if wraps and (seen or not move_behind(built, wraps, module, study).problem):
            return EarlyOptimizer(call, model, tuple(wraps))
        if anew:
            return anew[0]
    return None


def models_of_each(model: ast.expr, module: Module, study: Study) -> frozenset[Constructor]:
    """Who shards a model, or those in a list, or in what else gives them one by one."""
    own = study.models(model, module).constructors
    listed = () if own else study.tracer.models_in(model, module, None) or ()
    made = model_values.models(frozenset(listed), study.tracer)
    return own.union(*(study.made_by(each) for each in made))


def _given_before_made_anew(
    built: ast.stmt, wrap: ast.stmt, order: Mapping[ast.AST, int], module: Module
) -> list[str] | None:
    """The calls that were given an early optimizer which is made anew behind the wrap, and may go
    on holding it; None if it is not made anew.

    It is if its name, and the names of what was made with it, are bound again where the model is
    wrapped, before anything else is done with them: the first ones are for models that are not.
    """
    held = _names_bound(built)
    if held is None:
        return None
    given_to: list[str] = []
    statements = (s for s in order if isinstance(s, ast.stmt))
    between = [s for s in statements if order[built] < order[s] < order[wrap]]
    for statement in sorted(between, key=lambda s: order[s]):
        own = [part for part in ast.iter_child_nodes(statement) if not isinstance(part, ast.stmt)]
        if all(held.isdisjoint(_paths(part)) for part in own):
            continue
        bound = _names_bound(statement)
        if bound is not None:
            held |= bound
        elif isinstance(statement, (ast.AnnAssign, ast.Assign, ast.AugAssign, ast.Return)):
            return None  # something else holds it from now on
        else:
            calls = [n for part in own for n in walk(part) if isinstance(n, ast.Call)]
            given_to += [ast.unparse(call.func) for call in calls if _gets(call, held)]
    block = block_of(module.table.parents[wrap], wrap)
    for statement in block[block.index(wrap) + 1 :]:
        bound = _names_bound(statement)
        used = statement if bound is None else statement.value  # type: ignore[attr-defined]
        if not held.isdisjoint(_paths(used)):
            return None
        held -= bound or set()
        if not held:
            return given_to
    return None


def _names_bound(statement: ast.stmt) -> set[str] | None:
    """The names that an assignment binds; None of another statement, and where it binds more."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    elif isinstance(statement, ast.Assign):
        targets = statement.targets
    paths = {path for target in targets for path in stored_paths(target)}
    return paths if paths and all(map(str.isidentifier, paths)) else None


def _gets(call: ast.Call, held: Collection[str]) -> bool:
    """Whether a call is given something that is held, to do more than to tell of it."""
    given = any(not _paths(argument).isdisjoint(held) for argument in given_arguments(call))
    return given and last_name(call.func) not in TELLING


@dataclass(frozen=True)
class Move:
    """How statements get behind some wraps."""

    behind: ast.stmt
    problem: str  # why they cannot; empty when they can
    statements: tuple[ast.stmt, ...] = ()  # in order: the first one, and what is made of it


def move_behind(
    statement: ast.stmt,
    wraps: Collection[ast.Call],
    module: Module,
    study: Study,
    filled: frozenset[str] = frozenset(),
) -> Move:
    """The statement behind which another has to move so that it comes after some wraps.

    Optimizers and schedulers that are made of its value in between move along.
    ``filled`` are the names that a loop puts something into.
    """
    table = module.table
    block = block_of(table.parents[statement], statement)
    own = [table.statement(wrap) for wrap in wraps]
    last = own[-1]
    above = (a for a in (last, *table.ancestors(last)) if a in block)
    behind = of_kind(next(above, last), ast.stmt)
    if behind not in block or any(isinstance(n, LEAVING) for n in walk(behind)):
        return Move(behind, "the two are not in the same straight run of statements")
    if not isinstance(statement, ast.Assign) and not (filled and isinstance(statement, ast.For)):
        return Move(behind, "it is not a plain assignment")
    between = block[block.index(statement) + 1 : block.index(behind) + 1]
    return _with_what_is_made(statement, behind, between, module, study, filled, own)


def _with_what_is_made(
    statement: ast.Assign | ast.For,
    behind: ast.stmt,
    between: Iterable[ast.stmt],
    module: Module,
    study: Study,
    filled: frozenset[str],
    wraps: Collection[ast.stmt],
) -> Move:
    """How a statement gets behind a later one, with what is made of its value in between."""
    moved: list[ast.stmt] = [statement]
    assigned = isinstance(statement, ast.Assign)
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    bound = {path for target in targets for path in stored_paths(target)} | filled
    used = _paths(statement.value if isinstance(statement, ast.Assign) else statement)
    used -= set() if assigned else filled
    nodes = (node for wrap in wraps for node in walk(wrap) if isinstance(node, ast.expr))
    wrapped = {path for node in nodes for path in stored_paths(node)}
    for other in between:
        if not bound.isdisjoint(_paths(other)):
            value = _made_of(other, bound, module, study)
            if value is None or not wrapped.isdisjoint(_paths(value)):
                return Move(behind, "it is used before that")
            moved.append(other)
            used |= _paths(value) - bound
            bound |= {p for t in of_kind(other, ast.Assign).targets for p in stored_paths(t)}
            continue
        owners = {re.split(r"[.\[]", path)[0] for path in bound if not path.isidentifier()}
        for node in walk(other):
            if isinstance(node, ast.Call) and not owners.isdisjoint(_handed(node)):
                return Move(behind, "it may be used before that")
            if not isinstance(node, ast.expr) or module.table.statement(node) in wraps:
                continue
            for path in used.intersection(stored_paths(node)):
                if not _stays(module.table.statement(node), path, moved, module, study):
                    return Move(behind, f"{path} changes in between")
    return Move(behind, "", tuple(moved))


def _stays(
    store: ast.stmt, path: str, moved: Iterable[ast.stmt], module: Module, study: Study
) -> bool:
    """Whether an assignment to a model gives it back, moved or compiled, with the parameters that
    it had. What asks for their names gets others of a compiled one."""
    match store:
        case ast.Assign(
            targets=[target],
            value=ast.Call(func=ast.Attribute(value=owner, attr=method)),
        ) if access_path(target) == access_path(owner) == path and method in SAME_PARAMETERS:
            return True
        case ast.Assign(targets=[target], value=ast.Call(func=function, args=[given, *_])) if (
            access_path(target) == access_path(given) == path
        ):
            compiles = bool(study.external(function, module) & COMPILING)
            nodes = (node for each in moved for node in walk(each))
            return compiles and not any(_may_ask_names(node, path) for node in nodes)
    return False


def _may_ask_names(node: ast.AST, path: str) -> bool:
    """Whether a node asks for names of parameters, or gives the model to what may."""
    match node:
        case ast.Attribute(attr="named_parameters"):
            return True
        case ast.Call():
            return any(access_path(given) == path for given in given_arguments(node))
    return False


def _made_of(
    statement: ast.stmt, held: Collection[str], module: Module, study: Study
) -> ast.Call | None:
    """The call that makes an optimizer or a scheduler of what is held, if an assignment does that
    alone."""
    call = statement.value if isinstance(statement, ast.Assign) else None
    made = {p for t in getattr(statement, "targets", ()) for p in stored_paths(t)}
    if not isinstance(call, ast.Call) or not made or not made.isdisjoint(held):
        return None
    makes = named_like_an_optimizer(call) or schedulers.is_scheduler(call, module, study)
    return call if makes else None


def _paths(part: ast.AST) -> set[str]:
    """The names and dotted paths that some code mentions."""
    nodes = (n for n in walk(part) if isinstance(n, ast.expr))
    return {path for node in nodes if (path := access_path(node)) is not None}


def stored_paths(target: ast.expr) -> Iterator[str]:
    """The paths that an assignment to ``target`` changes."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            yield from stored_paths(element)
    elif isinstance(getattr(target, "ctx", None), (ast.Store, ast.Del)):
        path = access_path(target.value if isinstance(target, ast.Starred) else target)
        if path is not None:
            yield path


def _handed(call: ast.Call) -> set[str]:
    """The names of the objects that a call is made on, or is given."""
    func = call.func
    while isinstance(func, (ast.Attribute, ast.Subscript)):
        func = func.value
    given = [func if func is not call.func else None, *given_arguments(call)]
    return {g.id for g in given if isinstance(g, ast.Name)}


def trained_models(study: Study) -> frozenset[Constructor]:
    """The models whose parameters an optimizer gets."""
    trained = study.cache(_trained)
    return frozenset().union(*(models_of_each(model, where, study) for model, where in trained))


def _trained(study: Study) -> list[tuple[ast.expr, Module]]:
    """What optimizers are given the parameters of."""
    return [
        (model, module)
        for module in study.project.modules
        for call in given_parameters(module)
        if any(is_optimizer(v, study) for v in study.values(call.func, module))
        for model in models_asked(call)
    ]
