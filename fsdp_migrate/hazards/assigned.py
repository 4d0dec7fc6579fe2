"""Data that is assigned to sharded parameters, which nobody computes with."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters.parameter_owners import with_holders
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.hazards.order import is_surely_sharded
from fsdp_migrate.hazards.parameters import holds_all, model_of
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import FUNCTIONS

DATA = "data"
NAMES = frozenset({"weight", "bias"})  # of parameters, on a path to one
# Who says one of these in the same function knows what the parameters are there.
KNOWN = frozenset({"DTensor", "unshard", "reset_sharded_param", "_local_tensor", "isinstance"})


def find_data(study: Study, module: Module) -> Iterator[ast.Attribute]:
    """Where ``.data`` of a parameter is assigned that is surely sharded by then."""
    for target in module.table.attributes_by_name.named(DATA):
        if not isinstance(module.table.parents[target], ast.Assign):
            continue  # p.data *= 2 changes it in place
        if not isinstance(target.ctx, ast.Store) or _is_known_there(target, module):
            continue
        model = _owner(target.value, module)
        if model is not None and any(
            is_surely_sharded(whole, target, module, study) and holds_all(whole, module, study)
            for whole in with_holders(model)
        ):
            yield target


def _owner(parameter: ast.expr, module: Module) -> ast.expr | None:
    """The model, or the part of one, whose parameter it is."""
    if isinstance(parameter, ast.Attribute) and parameter.attr in NAMES:
        return parameter.value
    return model_of(parameter, module)


def _is_known_there(node: ast.expr, module: Module) -> bool:
    function = enclosing_function(module, node)
    around = function if isinstance(function, FUNCTIONS) else module.source.tree
    return any(last_name(each) in KNOWN for each in ast.walk(around))
