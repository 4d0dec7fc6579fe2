"""Gradients that are never reduced, since reductions are off and nothing turns them on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.hazards.order import follows, function_scope, is_surely_sharded
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import first_argument, last_name

SYNC = "set_requires_gradient_sync"
GIVEN = "requires_gradient_sync"


def find_unsynced(study: Study, module: Module) -> Iterator[ast.Call]:
    """Calls that turn reductions off for a sharded model that is trained below, where no call of
    the project may turn them on."""
    for call in module.table.calls_by_name.named(SYNC):
        if study.cache(_turns_on) or not isinstance(call.func, ast.Attribute):
            continue
        own = module.table.own_calls.get(function_scope(call, module), ())
        trains = {last_name(c.func) for c in own if follows(call, c, module)}
        model = call.func.value
        if {"backward", "step"} <= trains and is_surely_sharded(model, call, module, study):
            yield call


def _turns_on(study: Study) -> bool:
    """Whether some use of the method in the project may turn reductions on."""
    for module in study.project.modules:
        calls = module.table.calls_by_name.named(SYNC)
        if len(module.table.attributes_by_name.named(SYNC)) != len(calls):
            return True  # a method that is handed on
        if any(each.value == SYNC for each in module.table.strings):
            return True
        for call in calls:
            match first_argument(call, GIVEN):
                case ast.Constant(value=False):
                    pass
                case _:
                    return True
    return False
