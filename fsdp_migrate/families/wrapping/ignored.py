"""What ``ignored_modules`` and ``ignored_states`` are given."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.model import Constructor, is_none
from fsdp_migrate.syntax.trees import FUNCTIONS

ARGUMENTS = ("ignored_modules", "ignored_states")


def is_any(constructor: Constructor) -> bool:
    """Whether some parameters are ignored."""
    given = [constructor.arguments.get(name) for name in ARGUMENTS]
    return any(
        node is not None and not is_none(node) and not is_empty(node, constructor.module)
        for node in given
    )


def is_empty(value: ast.expr, module: Module) -> bool:
    """Whether an argument is a list without elements, or a function's name of one that has no
    other use."""
    match value:
        case ast.List(elts=[]) | ast.Tuple(elts=[]):
            return True
        case ast.Name(id=name):
            others = [n for n in module.table.names_by_id.of({name}) if n is not value]
            match [module.table.parents[n] for n in others]:
                case [ast.Assign(value=ast.List(elts=[]) | ast.Tuple(elts=[]), targets=[target])]:
                    around = enclosing_function(module, value)
                    own = isinstance(around, FUNCTIONS) and target is others[0]
                    return own and enclosing_function(module, target) is around
    return False
