"""What the first rank of all does, and no other: ``if dist.get_rank() == 0: torch.save(state)``."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Constant, Function, Made, Value
from fsdp_migrate.families.checkpoints import ranks, snapshots
from fsdp_migrate.families.checkpoints.hoisting_places import Place, held_parts
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.trees import FUNCTIONS

DEEPEST = 4  # functions that hand a state on, and dictionaries that it goes into


def is_read_by_first(site: Site, place: Place | None, study: Study) -> bool:
    """Whether the first rank of all, and no other, does anything with the state."""
    module = site.module
    if place is not None:
        exits = not place.around
        return any(is_first(part, module, study, exits=exits) for part in place.tests)
    return _goes_to_first(site.node, module, study, DEEPEST)


def _goes_to_first(node: ast.AST, module: Module, study: Study, depth: int) -> bool:
    """Whether the first rank alone uses a value, in its function or where that returns it to."""
    if depth <= 0:
        return False
    returned, place = module.table.parents[node], None
    if isinstance(returned, ast.Tuple) and isinstance(node, ast.expr):  # return model, optimizer
        place, returned = returned.elts.index(node), module.table.parents[returned]
    if isinstance(returned, ast.Return):
        function = enclosing_function(module, returned)
        callers = study.tracer.callers(function, module) if isinstance(function, FUNCTIONS) else []
        return bool(callers) and all(
            _result_goes_to_first(c.call, place, c.module, study, depth - 1) for c in callers
        )
    return _is_used_by_first(_uses_of_result(node, module), module, study, depth)


def _result_goes_to_first(
    call: ast.Call, place: int | None, module: Module, study: Study, depth: int
) -> bool:
    """Whether the first rank alone uses what a call gives, or what stands there at a ``place``."""
    if place is None:
        return _goes_to_first(call, module, study, depth)
    match module.table.parents[call]:
        case ast.Assign(targets=[ast.Tuple(elts=targets)]) if place < len(targets):
            target = targets[place]
            uses = _uses_of_name(target, module) if isinstance(target, ast.Name) else []
            return _is_used_by_first(uses, module, study, depth)
    return False


def _is_used_by_first(uses: list[ast.Name], module: Module, study: Study, depth: int) -> bool:
    return bool(uses) and all(
        _is_under_first(use, module, study) or _goes_to_first(use, module, study, depth - 1)
        for use in uses
    )


def _uses_of_result(node: ast.AST, module: Module) -> list[ast.Name]:
    """Where the name is read that a value, or the dictionary it stands in, is given."""
    table = module.table
    parent = table.parents[node]
    while isinstance(parent, ast.Dict):
        parent = table.parents[parent]
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
        return []
    target = parent.targets[0]
    if isinstance(target, ast.Subscript):  # states["model"] = ...
        target = target.value
    return _uses_of_name(target, module) if isinstance(target, ast.Name) else []


def _uses_of_name(target: ast.Name, module: Module) -> list[ast.Name]:
    table = module.table
    scope = table.within[target].lookup(target.id)
    return [
        n
        for n in table.names
        if n.id == target.id
        and isinstance(n.ctx, ast.Load)
        and table.within[n].lookup(n.id) is scope
        and not snapshots.is_subscripted_target(n, module)
    ]


def _is_under_first(node: ast.AST, module: Module, study: Study) -> bool:
    return any(
        is_first(part, module, study, exits=guard.exits)
        for guard in ranks.guards(node, module)
        for part in held_parts(guard, node, module)
    )


def is_first(test: ast.expr, module: Module, study: Study, *, exits: bool) -> bool:
    """``torch.distributed.get_rank() == 0``, by any name; ``!=`` where the others returned."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return is_first(test.operand, module, study, exits=not exits)
    if isinstance(test, (ast.Name, ast.Attribute)):  # self.is_main_process
        given = study.values(test, module)
        asked = [(v.node, v.module) for v in given if isinstance(v.node, ast.Compare)]
        known = bool(asked) and len(asked) == len(given)
        return known and all(is_first(node, where, study, exits=exits) for node, where in asked)
    if isinstance(test, ast.Call):  # is_main_process()
        called = [v for v in study.values(test.func, module) if isinstance(v, Function)]
        return len(called) == 1 and _says_first(called[0], study, exits=exits)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    zero, op = test.comparators[0], test.ops[0]
    if not isinstance(zero, ast.Constant) or zero.value != 0:
        return False
    if not isinstance(op, ast.NotEq if exits else ast.Eq):
        return False
    found = study.values(test.left, module)
    # A variable of the file has 0 before the processes know each other.
    ranks_of_all = [value for value in found if _is_rank(value)]
    others = [value for value in found if not _is_rank(value)]
    return bool(ranks_of_all) and all(isinstance(v, Constant) and v.value == 0 for v in others)


def _says_first(function: Function, study: Study, *, exits: bool) -> bool:
    """Whether all that a function does is to return whether the rank is 0."""
    body = function.node.body
    last = body[-1] if isinstance(body, list) else None
    if not isinstance(last, ast.Return) or last.value is None:
        return False
    alone = sum(isinstance(node, ast.Return) for node in ast.walk(function.node)) == 1
    is_test = isinstance(last.value, ast.Compare)
    return alone and is_test and is_first(last.value, function.module, study, exits=exits)


def _is_rank(value: Value) -> bool:
    """``torch.distributed.get_rank()``, or ``int(os.environ["RANK"])``."""
    if not isinstance(value, Made) or not isinstance(value.node, ast.Call):
        return False
    if value.made_by == "builtins.int":
        return any(isinstance(n, ast.Constant) and n.value == "RANK" for n in ast.walk(value.node))
    is_call = not value.node.args and not value.node.keywords
    name = value.made_by.replace(".distributed_c10d", "")
    return is_call and name == "torch.distributed.get_rank"
