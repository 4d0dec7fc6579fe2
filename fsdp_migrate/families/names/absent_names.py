"""Imports of names from ``torch.distributed.fsdp`` that torch has elsewhere, or nowhere.

A program stops at them, with FSDP1 and without it. What is one of FSDP1's names is taken for it, so
that its uses are migrated as any other.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.syntax.kinds import of_kind

# What a condition on a release may ask.
ASKS = re.compile("torch|version|hasattr|find_spec|available|type_checking", re.IGNORECASE)

CONSTRUCT = Construct.parse("absent name")


def find_absent(study: Study, module: Module) -> Iterator[Site]:
    """Imports of what torch has not, where nothing stands around them: of FSDP1's names, where they
    are used first."""
    if not module.mentions(fsdp1.PACKAGE):
        return
    table = module.table
    for binding in table.imports:
        alias = binding.node
        what = _absent(alias, module)
        if not what or _may_know(table.statement(alias), module):
            continue
        assert isinstance(alias, ast.alias)
        if fsdp1.canonical(_qualified(alias, module)) is None:
            yield Site(CONSTRUCT, module, alias, alias)
            continue
        used = table.names_by_id.named(binding.name)
        if used:  # what nothing uses is dropped
            first = table.statement(min(used, key=module.position))
            yield Site(CONSTRUCT, module, first, alias)


def decide_absent(site: Site, study: Study, rule: str) -> Decision:
    """Mark the first use of a name that is FSDP1's, and leave the import of another."""
    alias = of_kind(site.reference, ast.alias)
    what = _absent(alias, site.module)
    short = fsdp1.canonical(_qualified(alias, site.module))
    if short is None:
        reason = f"torch has no {what}, and the program stops where it is imported"
        return study.left(site, rule, reason, "import what is meant, or drop it")
    name = alias.asname or alias.name
    review = (
        f"torch has no {what}, and the program stopped at that import: {name} is taken for "
        f"{fsdp1.place_of(short)}.{short}"
    )
    return study.rewritten(site, rule, f"taken for {short}", review=review)


def _qualified(node: ast.AST, module: Module) -> str:
    """The dotted path of what an import names."""
    alias, statement = of_kind(node, ast.alias), module.table.parents[node]
    if isinstance(statement, ast.ImportFrom):
        return "" if statement.level else f"{statement.module}.{alias.name}"
    return alias.name


def _absent(node: ast.AST, module: Module) -> str:
    return fsdp1.absent(_qualified(node, module)) if isinstance(node, ast.alias) else ""


def _may_know(statement: ast.stmt, module: Module) -> bool:
    """Whether something stands around an import that may know of releases without the name."""
    for parent in module.table.ancestors(statement):
        if isinstance(parent, ast.Try):
            return True
        if isinstance(parent, ast.If) and ASKS.search(ast.unparse(parent.test)):
            return True
    return False
