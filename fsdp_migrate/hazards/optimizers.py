"""Optimizers that hold other parameters than those that their sharded model trains."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Constant
from fsdp_migrate.families.parameters import optimized_models
from fsdp_migrate.families.training_loop.early_optimizers import (
    TELLING,
    given_parameters,
    is_optimizer,
    is_optimizer_name,
    models_asked,
    move_behind,
)
from fsdp_migrate.families.wrapping import fully_sharded, part_paths
from fsdp_migrate.families.wrapping.fully_sharded import Sharding
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.hazards.order import (
    calls_that_shard,
    end,
    follows,
    function_scope,
    names_that_shard,
    surely_precedes,
)
from fsdp_migrate.hazards.parameters import IGNORED
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Edit, Insert, MoveStatement, code
from fsdp_migrate.syntax.expressions import given_arguments, last_name, names_in
from fsdp_migrate.syntax.trees import position, walk

RESHARDING = "reshard_after_forward"
GROUPS, ADDING = "param_groups", "add_param_group"
PREPARING = frozenset({"prepare", "prepare_optimizer", "setup", "setup_optimizers"})
# What puts the whole parameters of a root away, or may.
AWAY = frozenset({"backward", "reshard", "set_reshard_after_forward", "fully_shard"})
# What a model may be asked for without that.
HARMLESS = frozenset({"eval", "train", "parameters", "named_parameters", "zero_grad", "modules"})


def find_early(study: Study, module: Module) -> Iterator[tuple[ast.Call, tuple[Edit, ...]]]:
    """Optimizers that are built before their model is sharded in the same function, and that
    nothing gives the parameters that it has then; with edits that move them below, where that is
    surely right."""
    names = names_that_shard(study)
    for optimizer in _possible(module):
        own = module.table.own_calls.get(function_scope(optimizer, module), ())
        later = [c for c in own if last_name(c.func) in names and follows(optimizer, c, module)]
        if not later or _fills_groups(study) or not _is_optimizer(optimizer, module, study):
            continue
        leading = calls_that_shard(study)
        owners = _owners(optimizer, module, study)
        shared = [
            call
            for call in later
            if any(shares(o, s, module, study) for o in owners for s in leading.get(call, ()))
        ]
        if any(not _is_replaced(optimizer, call, module, study) for call in shared):
            yield optimizer, _moved(optimizer, later, module, study)


def _moved(
    optimizer: ast.Call, calls: Sequence[ast.Call], module: Module, study: Study
) -> tuple[Edit, ...]:
    """What moves an optimizer, and what is made of it, below calls that shard."""
    bound = {n.id for n in walk(optimizer) if isinstance(n, ast.Name) and _is_stored(n)}
    models = {path.split(".")[0] for path in asked_paths(optimizer)}
    given = names_in(optimizer.args[0]) if optimizer.args else {""}
    built = module.table.statement(optimizer)
    if not models or not given <= models | bound or optimizer is not getattr(built, "value", None):
        return ()  # what it is given may hold the old parameters
    move = move_behind(built, sorted(calls, key=position), module, study)
    if move.problem:
        return ()
    return tuple(MoveStatement(module, each, move.behind) for each in move.statements)


def _is_stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _possible(module: Module) -> list[ast.Call]:
    """The calls that may build an optimizer, by their text, in order."""
    calls = module.table.calls_by_name
    named = calls.of([name for name in calls.names if is_optimizer_name(name)])
    return sorted({*given_parameters(module), *named}, key=position)


def _is_optimizer(call: ast.Call, module: Module, study: Study) -> bool:
    return any(is_optimizer(value, study) for value in study.values(call.func, module))


def _owners(optimizer: ast.Call, module: Module, study: Study) -> list[ast.expr]:
    """What an optimizer gets the parameters of, in its own file."""
    asked = optimized_models.asked_for(optimizer, module, study)
    return [held.value for held, where in asked if where is module]


def shares(model: ast.expr, sharding: Sharding, module: Module, study: Study) -> bool:
    """Whether a model surely has parameters in common with what is sharded."""
    if any(keyword.arg in {IGNORED, None} for keyword in sharding.call.keywords):
        return False
    function = enclosing_function(module, model)
    ways = part_paths.places(model, module, study)
    others = part_paths.places(sharding.subject, sharding.module, study)
    return any(
        part_paths.is_one_object(value, function, module, study)
        for value in part_paths.shared(ways, others)
    )


def _fills_groups(study: Study) -> bool:
    """Whether the project puts parameters into optimizers that there are already."""
    return study.cache(_groups_filled)


def _groups_filled(study: Study) -> bool:
    return any(
        module.table.calls_by_name.named(ADDING)
        or any(each.attr == GROUPS for each in module.table.stored_attributes)
        or any(map(_is_stored_group, module.table.subscripts))
        for module in study.project.modules
    )


def _is_stored_group(node: ast.Subscript) -> bool:
    """Whether ``group["params"]``, or an element of that, is assigned."""
    if isinstance(node.ctx, ast.Load):
        return False
    inner = [node.slice, node.value.slice if isinstance(node.value, ast.Subscript) else None]
    return any(isinstance(each, ast.Constant) and each.value == "params" for each in inner)


def _is_replaced(optimizer: ast.Call, wrap: ast.Call, module: Module, study: Study) -> bool:
    """Whether an optimizer is made anew behind the sharding, or may get other parameters there."""
    statement = module.table.statement(optimizer)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = {path for target in targets if (path := access_path(target)) is not None}
    own = module.table.own_calls.get(function_scope(optimizer, module), ())
    for call in own:
        if position(call) <= position(wrap) or call is optimizer:
            continue
        given = {access_path(each) for each in given_arguments(call)}
        if last_name(call.func) in PREPARING and not names.isdisjoint(given):
            return True
    return any(
        position(other) > position(wrap)
        and function_scope(other, module) is function_scope(optimizer, module)
        and _is_optimizer(other, module, study)
        for other in _possible(module)
    )


def find_late(study: Study, module: Module) -> Iterator[tuple[ast.Call, tuple[Edit, ...]]]:
    """Optimizers that are built behind a forward that left the root's parameters whole, with the
    call that puts these away."""
    for optimizer in _possible(module):
        own = module.table.own_calls.get(function_scope(optimizer, module), ())
        runs = [
            call
            for call in own
            if end(call) < position(optimizer)
            and access_path(call.func) in asked_paths(optimizer)
            and surely_precedes(call, optimizer, module)
        ]
        whole = [run for run in runs if _leaves_root_whole(run, optimizer, module, study)]
        if whole and _is_optimizer(optimizer, module, study):
            new = code(f"{access_path(whole[0].func)}.reshard()")
            yield optimizer, (Insert(module, module.table.statement(optimizer), (new,)),)


def asked_paths(optimizer: ast.Call) -> set[str]:
    """How the models are written whose parameters an optimizer is given."""
    paths = map(access_path, models_asked(optimizer))
    return {path for path in paths if path is not None}


def _leaves_root_whole(run: ast.Call, optimizer: ast.Call, module: Module, study: Study) -> bool:
    """Whether a model is a root in front of a forward, and nothing puts its parameters away before
    an optimizer is built."""
    path = access_path(run.func) or ""
    roots = _roots_sharded(run, path, module, study)
    if not roots or not all(_keeps_whole(s, study) for s in roots):
        return False
    first = min(end(s.call) for s in roots)
    if any(first < position(stored) < position(optimizer) for stored in _stores(path, module)):
        return False
    own = module.table.own_calls.get(function_scope(run, module), ())
    between = [c for c in own if end(run) < end(c) and position(c) < position(optimizer)]
    return not any(_may_put_away(call, path) for call in between)


def _stores(path: str, module: Module) -> list[ast.expr]:
    """Where something is bound to a path."""
    named: list[ast.expr] = list(module.table.names_by_id.named(path))
    named += [each for each in module.table.stored_attributes if access_path(each) == path]
    return [each for each in named if not isinstance(getattr(each, "ctx", None), ast.Load)]


def _roots_sharded(run: ast.Call, path: str, module: Module, study: Study) -> list[Sharding]:
    """The calls of ``fully_shard`` in the same function that surely made a root of what is at a
    path when it runs; none if one of them may not have."""
    own = [
        s
        for s in fully_sharded.shardings(study)
        if s.module is module
        and access_path(s.subject) == path
        and function_scope(s.call, module) is function_scope(run, module)
    ]
    return own if all(surely_precedes(s.call, run, module) for s in own) else []


def _keeps_whole(sharding: Sharding, study: Study) -> bool:
    """Whether a root keeps its whole parameters after a forward, as it does unless it is told."""
    for keyword in sharding.call.keywords:
        if keyword.arg is None:
            return False
        if keyword.arg == RESHARDING:
            given = study.literal(keyword.value, sharding.module)
            return isinstance(given, Constant) and given.value in (None, False)
    return len(sharding.call.args) == 1


def _may_put_away(call: ast.Call, path: str) -> bool:
    """Whether a call may put a model's whole parameters away: it is given the model, or says so."""
    name = last_name(call.func)
    if name in AWAY:
        return True
    given = {access_path(each) for each in given_arguments(call)}
    method = call.func
    asked = isinstance(method, ast.Attribute) and access_path(method.value) == path
    return (path in given and name not in TELLING) or (asked and name not in HARMLESS)
