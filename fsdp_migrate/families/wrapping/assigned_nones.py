"""Variables that take a setting to a constructor, and are ``None`` where there is none.

``policy = None`` and, under a condition, ``policy = MixedPrecision(...)``: FSDP2 takes an object in
either case, which is assigned where ``None`` was.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping import tables
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import is_none
from fsdp_migrate.planning.proposal import Proposal


def assigned_nones(
    value: ast.expr, module: Module, may_be_none: Callable[[ast.expr], bool]
) -> list[ast.expr]:
    """The ``None``s that are assigned to a variable which only takes a setting to a constructor;
    none if it may be None in another way."""
    given, _ = tables.assigned(value, module) or ([], [])
    found = [leaf for each in given for leaf in tables.leaves(each)]
    others = [leaf for leaf in found if not is_none(leaf)]
    return [] if any(map(may_be_none, others)) else [leaf for leaf in found if is_none(leaf)]


def replace_nones(
    nones: list[ast.expr], value: ast.expr, default: Code, module: Module, proposal: Proposal
) -> None:
    """Assign a default in the place of each ``None``, which the variable's type then leaves out."""
    for none in nones:
        proposal.replace(module, none, default)
    for annotation, inner in _optional(value, module):
        proposal.replace(module, annotation, code("{t}", t=inner))


def _optional(value: ast.expr, module: Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """``Optional[T]`` and ``T | None`` where the variable is assigned, each with its ``T``."""
    _, names = tables.assigned(value, module) or ([], [])
    for name in names:
        match module.table.parents[name]:
            case ast.AnnAssign(
                annotation=ast.Subscript(
                    value=ast.Name(id="Optional") | ast.Attribute(attr="Optional"), slice=inner
                ) as annotation
            ):
                yield annotation, inner
            case ast.AnnAssign(
                annotation=ast.BinOp(left=inner, op=ast.BitOr(), right=none) as annotation
            ) if is_none(none):
                yield annotation, inner
