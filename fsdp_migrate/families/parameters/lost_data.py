"""What was assigned to ``.data`` of a flat parameter, which FSDP1 lost: ``p.data = old[p]``.

Without ``use_orig_params=True`` the next forward gathered what was assigned, and the backward put
back the memory that the unit had from the start, to which the optimizer's step was added: measured
on two ranks. A copy is kept.
"""

from __future__ import annotations

import ast
from collections.abc import Collection

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters.elements import lists_of
from fsdp_migrate.families.parameters.listed_parameters import MEMBERS
from fsdp_migrate.families.parameters.parameter_changes import data_assignments
from fsdp_migrate.families.parameters.parameter_loops import AROUND, METHODS
from fsdp_migrate.families.parameters.parameter_owners import may_be_flat
from fsdp_migrate.families.wrapping import strategies
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import names_in

REVIEW = (
    "without use_orig_params=True FSDP1 computed with what is assigned to .data here up to the "
    "next backward, and went on with what the parameters had before; now it is kept"
)


def is_lost(
    statement: ast.Assign, models: Collection[Constructor], study: Study, module: Module
) -> bool:
    """Whether FSDP1 may have lost what a statement assigns to ``.data`` of parameters."""
    sharded = any(strategies.possible(model, study) != {"NO_SHARD"} for model in models)
    return (
        sharded
        and may_be_flat(models)
        and any(
            _are_parameters(each, study, where)
            for _, owner in data_assignments(statement)
            for each, where in lists_of(owner, study, module)
        )
    )


def _are_parameters(given: ast.expr, study: Study, module: Module) -> bool:
    """Whether a loop goes over parameters themselves, and not over copies of them."""
    if _names_parameters(given):
        return True
    values = study.values(given, module) if isinstance(given, (ast.Name, ast.Attribute)) else ()
    return any(isinstance(v.node, ast.expr) and _names_parameters(v.node) for v in values)


def _names_parameters(given: ast.expr) -> bool:
    """``model.parameters()``, ``list(model.parameters())`` and ``group["params"]``."""
    match given:
        case ast.Call(func=ast.Attribute(attr=attr)):
            return attr in METHODS
        case ast.Call(func=ast.Name(id=name), args=args):
            return name in AROUND and any(_names_parameters(each) for each in args)
        case ast.Subscript(slice=ast.Constant(value=key)):
            return key == MEMBERS
        case ast.ListComp(elt=ast.Name(id=each), generators=loops):
            return any(each in names_in(g.target) and _names_parameters(g.iter) for g in loops)
    return False
