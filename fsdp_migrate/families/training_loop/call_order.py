"""Whether something runs before the models that it is done to are sharded, in whichever functions
the two stand."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.training_loop.later_wraps import function_scope
from fsdp_migrate.families.wrapping.one_program import can_meet
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.trees import FUNCTIONS, LOOPS

Places = dict[tuple[ast.AST, Module], list[ast.expr]]
"""The calls that lead to something, and itself, by the function that they stand in."""


def runs_before_sharding(
    place: ast.expr, module: Module, models: Iterable[Constructor], study: Study
) -> bool:
    """Whether something has run, wherever it is led to, when one of ``models`` is sharded.

    In every function that leads to both, the one comes first; and there is one for each model that
    can be in one program with it.
    """
    models = list(models)
    models = [m for m in models if can_meet(module, m.module, study)] or models
    here = _leading_to(place, module, study)
    found = [_made_at(each) for each in models]
    there = [_leading_to(call, where, study) for each in found for call, where in each]
    return bool(found) and all(found) and all(_precedes(here, each) for each in there)


def _made_at(model: Constructor) -> Iterable[tuple[ast.expr, Module]]:
    """The calls that shard: of a subclass of FSDP1, whose constructor may be nowhere in the file,
    those of the subclass."""
    return model.made_at if model.defined_by is not None else [(model.call, model.module)]


def _leading_to(place: ast.expr, module: Module, study: Study) -> Places:
    """The calls that lead to a place, and the place itself."""
    found: Places = defaultdict(list)
    waiting = [(place, module)]
    for each, where in waiting:
        function = enclosing_function(where, each)
        is_first = (function, where) not in found
        found[function, where].append(each)
        if is_first and isinstance(function, FUNCTIONS):
            waiting += [(c.call, c.module) for c in study.tracer.callers(function, where)]
    return found


def _precedes(first: Places, second: Places) -> bool:
    pairs = [
        (a, b, module)
        for function, module in first.keys() & second.keys()
        for a in first[function, module]
        for b in second[function, module]
        if a is not b
    ]
    return bool(pairs) and all(_is_before(a, b, module) for a, b, module in pairs)


def _is_before(one: ast.expr, other: ast.expr, module: Module) -> bool:
    """Whether one place of a function has run when the other does, and not in a later turn."""
    table = module.table
    order = module.flow(function_scope(one, module)).order
    first, second = (order.get(table.statement(each)) for each in (one, other))
    around = set(table.ancestors(one)) & set(table.ancestors(other))
    function = enclosing_function(module, one)
    if any(isinstance(n, LOOPS) and function in table.ancestors(n) for n in around):
        return False
    return first is not None and second is not None and first < second
