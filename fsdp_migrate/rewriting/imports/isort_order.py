"""The order in which isort puts imports: by section, by module, by name."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from fsdp_migrate.analysis.load_order import ImportStatement
from fsdp_migrate.planning.edits import Import

OWN = 3  # the section of the project itself


@dataclass(frozen=True)
class Neighbour:
    """The import beside which a new one stands."""

    statement: ImportStatement
    before: bool = False  # the new import goes above it


def find_neighbour(
    statements: list[ImportStatement],
    need: Import,
    local: frozenset[str],
    *,
    by_name: bool = False,
) -> Neighbour | None:
    """The import beside which a new one keeps isort's order, as far as the file has it.

    ``by_name``: names of one module have a statement each, and an order.
    """
    if not statements:
        return None
    plain = [s for s in statements if s.col_offset == statements[0].col_offset]
    section = section_of(need.source, local)
    peers = [s for s in plain if section_of(source_of(s), local) == section]
    if peers:
        alike = [s for s in peers if isinstance(s, ast.ImportFrom) == bool(need.name)]
        family = need.source.split(".", maxsplit=1)[0]
        related = [s for s in alike if source_of(s).split(".", maxsplit=1)[0] == family]
        pool = related or alike or peers
        in_order = _is_in_order(plain, local)
        if need.name and not alike:
            first = peers[-1] if in_order else peers[0]
            return Neighbour(_last_together(first, peers, plain))
        if section == OWN and not in_order:
            return Neighbour(_last_together(pool[0], pool, pool))
        smaller = [s for s in pool if _comes_first(s, need, by_name=by_name)]
        if smaller:
            return Neighbour(smaller[-1])
        return Neighbour(pool[0], before=True)
    later = [s for s in plain if section_of(source_of(s), local) > section]
    if later:
        return Neighbour(later[0], before=True)
    return Neighbour(plain[-1])


def _last_together(
    first: ImportStatement,
    peers: Sequence[ImportStatement],
    plain: Sequence[ImportStatement],
) -> ImportStatement:
    """The last of the peers that follow the first one without a blank line, and of what else is
    imported as a module there."""
    last = first
    for statement in plain:
        is_next = statement.lineno == (last.end_lineno or 0) + 1
        if is_next and (statement in peers or isinstance(statement, ast.Import)):
            last = statement
    return last


def _is_in_order(plain: Sequence[ImportStatement], local: frozenset[str]) -> bool:
    """Whether each section of imports ends before the next one starts."""
    sections = [section_of(source_of(s), local) for s in plain]
    return sections == sorted(sections)


def _comes_first(statement: ImportStatement, need: Import, *, by_name: bool) -> bool:
    source = source_of(statement)
    if by_name and need.name and source == need.source:
        return name_order(statement.names[0].name) <= name_order(need.name)
    return source <= need.source


def section_of(source: str, local: frozenset[str]) -> int:
    """0 ``__future__``, 1 the standard library, 2 other packages, 3 the project itself."""
    top = source.split(".", maxsplit=1)[0]
    if top == "__future__":
        return 0
    if top in sys.stdlib_module_names:
        return 1
    if source.startswith((".", "fsdp2_support")) or top in local:
        return OWN
    return 2


def source_of(statement: ImportStatement) -> str:
    """The module that a statement imports from: ``.layers``; of ``import a, b`` the first."""
    if isinstance(statement, ast.ImportFrom):
        return "." * statement.level + (statement.module or "")
    return statement.names[0].name


def group_by_source(needs: Sequence[Import]) -> list[list[Import]]:
    """Imports that one statement brings in each: names of one module, or one module."""
    groups: dict[tuple[str, str | None], list[Import]] = {}
    for need in sorted(needs, key=lambda n: (n.source, name_order(n.name))):
        key = (need.source, None) if need.name else (need.source, need.asname)
        groups.setdefault(key, []).append(need)
    return list(groups.values())


def name_order(name: str) -> str:
    """isort's order: CONSTANTS, then Classes, then functions, each without regard to case."""
    bare = name.lstrip("_")
    kind = "0" if bare.isupper() and len(bare) > 1 else "1" if bare[:1].isupper() else "2"
    return kind + name.lower()
