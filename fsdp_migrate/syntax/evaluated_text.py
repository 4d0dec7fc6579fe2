"""Text that a module evaluates: names in it are uses that no ``ast.Name`` shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.syntax.name_table import NameTable

EVALUATING = frozenset({"eval", "exec"})
ASKED = EVALUATING | {"globals"}


def may_name(name: str, table: NameTable) -> bool:
    """Whether something that ``eval`` or ``exec`` is given may name ``name``.

    Text that is not in sight may. So may the keys by which ``globals()`` is asked.
    """
    return any(text is None or _has(name, text) for text in _texts(table))


def names(name: str, table: NameTable) -> bool:
    """Whether text in sight that ``eval`` or ``exec`` is given names ``name``."""
    return any(text is not None and _has(name, text) for text in _texts(table))


def _texts(table: NameTable) -> Iterator[str | None]:
    """What is evaluated; None for what is not in sight."""
    for call in table.calls_by_name.of(ASKED):
        if not isinstance(call.func, ast.Name) or table.within[call.func].lookup(call.func.id):
            continue
        if call.func.id == "globals":
            yield None
        elif call.func.id in EVALUATING and call.args:
            yield " ".join(_literal_parts(call.args[0])) or None


def _has(name: str, text: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def _literal_parts(text: ast.expr) -> Iterator[str]:
    values = text.values if isinstance(text, ast.JoinedStr) else [text]
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value
