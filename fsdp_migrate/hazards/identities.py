"""What is known of parameters by their identity, from before ``fully_shard`` replaces them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.training_loop.early_optimizers import move_behind
from fsdp_migrate.hazards.optimizers import shares
from fsdp_migrate.hazards.order import (
    calls_that_shard,
    end,
    function_scope,
    names_that_shard,
    surely_precedes,
)
from fsdp_migrate.hazards.parameters import model_of
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Edit, MoveStatement
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import position

ASKING = frozenset({"getattr", "hasattr"})
OWN = frozenset({"data", "grad", "requires_grad"})  # which torch gives every parameter


def find_early(study: Study, module: Module) -> Iterator[tuple[ast.expr, tuple[Edit, ...]]]:
    """Sets of ``id(p)``, and attributes of parameters, that are made in front of the sharding of
    their model and looked for behind it, in the same function; with what moves a set below."""
    for made, model, uses in (*_identities(module), *_attributes(module)):
        scope = function_scope(made, module)
        names = names_that_shard(study)
        own = module.table.own_calls.get(scope, ())
        later = [c for c in own if last_name(c.func) in names and surely_precedes(made, c, module)]
        path = access_path(model)
        looked_for = [
            use
            for use, parameter in uses
            if function_scope(use, module) is scope
            and (other := model_of(parameter, module)) is not None
            and access_path(other) == path
        ]
        for call in later:
            behind = looked_for and all(end(call) < position(use) for use in looked_for)
            if behind and any(
                shares(model, sharding, module, study)
                for sharding in calls_that_shard(study).get(call, ())
            ):
                yield made, _moved(made, later, module, study)
                break


def _moved(
    made: ast.expr, calls: Sequence[ast.Call], module: Module, study: Study
) -> tuple[Edit, ...]:
    """What moves a set below calls that shard, where nothing else hangs on it."""
    statement = module.table.statement(made)
    if not isinstance(statement, ast.Assign) or statement.value is not made:
        return ()
    move = move_behind(statement, sorted(calls, key=position), module, study)
    if move.problem or len(move.statements) != 1:
        return ()
    return (MoveStatement(module, statement, move.behind),)


Found = tuple[ast.expr, ast.expr, list[tuple[ast.expr, ast.expr]]]


def _identities(module: Module) -> Iterator[Found]:
    """``ids = {id(p) for p in model.parameters() if ...}``, the model, and every ``id(q) in ids``
    with the parameter."""
    table = module.table
    for call in table.calls_by_name.named("id"):
        made = table.parents[call]
        if not isinstance(made, (ast.SetComp, ast.ListComp)) or made.elt is not call:
            continue
        model = model_of(call.args[0], module) if call.args else None
        statement = table.parents[made]
        if model is None or not isinstance(statement, ast.Assign):
            continue
        match statement.targets:
            case [ast.Name(id=name)]:
                scope = table.scope_of(statement.targets[0])
                if len(scope.bindings.get(name, ())) == 1:
                    uses = [_looked_for(use, module) for use in table.reads(name, scope)]
                    if all(use is not None for use in uses):
                        yield made, model, [use for use in uses if use is not None]


def _looked_for(name: ast.Name, module: Module) -> tuple[ast.expr, ast.expr] | None:
    """``id(q) in ids`` around ``ids``, and ``q``."""
    match module.table.parents[name]:
        case (
            ast.Compare(
                left=ast.Call(func=ast.Name(id="id"), args=[parameter]),
                ops=[ast.In() | ast.NotIn()],
            ) as test
        ):
            return test, parameter
    return None


def _attributes(module: Module) -> Iterator[Found]:
    """``p.no_decay = ...`` for parameters of a model, and every ``getattr(q, "no_decay", ...)``."""
    for stored in module.table.stored_attributes:
        if stored.attr in OWN or not isinstance(stored.value, ast.Name):
            continue
        model = model_of(stored.value, module)
        if model is None:
            continue
        uses: list[tuple[ast.expr, ast.expr]] = []
        for call in module.table.calls_by_name.of(ASKING):
            match call.args:
                case [parameter, ast.Constant(value=name), *_] if name == stored.attr:
                    uses.append((call, parameter))
        yield stored, model, uses
