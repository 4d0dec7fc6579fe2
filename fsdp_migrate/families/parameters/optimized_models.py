"""Which models' parameters an optimizer gets, however they come to it.

``AdamW(model.parameters())``; a list or groups that loops over ``named_parameters()`` fill; what a
function gives of a model.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters.listed_parameters import Held, parameters_in
from fsdp_migrate.families.training_loop.early_optimizers import (
    given_parameters,
    is_optimizer,
    is_optimizer_name,
    parameter_calls,
)
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import given_arguments
from fsdp_migrate.syntax.kinds import method_of


def optimizers(module: Module, study: Study) -> Iterator[ast.Call]:
    """The calls of a file that build an optimizer, in order."""
    calls = module.table.calls_by_name
    named = calls.of([name for name in calls.names if is_optimizer_name(name)])
    found = dict.fromkeys([*given_parameters(module), *named])
    for call in sorted(found, key=lambda each: (each.lineno, each.col_offset)):
        if any(is_optimizer(v, study) for v in study.values(call.func, module)):
            yield call


def asked_for(call: ast.Call, module: Module, study: Study) -> tuple[Held, ...]:
    """Every ``model.parameters`` whose elements a call is given, and its file."""
    direct = [(method_of(parameters), module) for parameters in parameter_calls(call)]
    arguments = () if direct else given_arguments(call)
    listed = [held for a in arguments for held in parameters_in(a, study, module)]
    return tuple(dict.fromkeys([*direct, *listed]))


def models(call: ast.Call, module: Module, study: Study) -> frozenset[Constructor]:
    """The sharded models whose parameters an optimizer gets."""
    held = asked_for(call, module, study)
    return frozenset(c for h, where in held for c in study.models(h.value, where).constructors)
