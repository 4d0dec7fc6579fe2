"""Which strategies an argument may be that has its value from elsewhere: a field, a dictionary.

Its values are in sight, and so is every strategy that the project names. Where some place looks one
up by its name or number, or hands the enum on, it may be any.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping import strategies
from fsdp_migrate.planning.context import Study


def strategies_of(value: ast.expr, module: Module, study: Study) -> frozenset[str]:
    """The strategies that an expression may be; all that there are if it may be something else."""
    found = {strategies.member(each) for each in study.values(value, module)}
    if not found or None in found:
        return strategies.MEMBERS
    return study.cache(_named) | {name for name in found if name is not None}


def _named(study: Study) -> frozenset[str]:
    """The strategies that the project names, or all if it may choose one that it does not name."""
    found: set[str] = set()
    for module in study.project.modules_mentioning(strategies.ENUM, *strategies.MEMBERS):
        if any(not _is_for_a_member(use, module) for use in _uses(module)):
            return strategies.MEMBERS
        found |= {name for name in strategies.MEMBERS if module.mentions(name)}
    return frozenset(found)


def _uses(module: Module) -> list[ast.expr]:
    """Where a file has the enum by a name."""
    table, enum = module.table, strategies.ENUM
    names = {enum, *(b.name for b in table.imports if b.qualified.endswith(f".{enum}"))}
    named = [node for name in names for node in table.names_by_id.named(name)]
    return [*named, *table.attributes_by_name.named(enum)]


def _is_for_a_member(use: ast.expr, module: Module) -> bool:
    """Whether a use of the enum names one of its members, or is a type."""
    parent = module.table.parents[use]
    if isinstance(parent, ast.Attribute):
        return parent.attr in strategies.MEMBERS
    while isinstance(parent, (ast.Subscript, ast.BinOp, ast.Tuple)):
        use, parent = parent, module.table.parents[parent]
    return use in (getattr(parent, "annotation", None), getattr(parent, "returns", None))
