"""Text that a module evaluates: names in it are uses that no ``ast.Name`` shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from fsdp_migrate.syntax.name_table import NameTable

EVALUATING = frozenset({"eval", "exec"})
ASKED = EVALUATING | {"globals"}


Told = Callable[[ast.expr], list[str] | None]  # the texts that an expression may be, if known


def may_name(name: str, table: NameTable, told: Told = lambda _: None) -> bool:
    """Whether something that ``eval`` or ``exec`` is given, or a key by which ``globals()`` is
    asked, may name ``name``. Text that is not in sight may."""
    return any(text is None or _has(name, text) for text in _texts(table, told))


def names(name: str, table: NameTable) -> bool:
    """Whether text in sight that ``eval``, ``exec`` or ``globals()`` is given names ``name``."""
    return any(text is not None and _has(name, text) for text in _texts(table, lambda _: None))


def may_bind(name: str, table: NameTable) -> bool:
    """Whether ``exec`` may give ``name`` another value, as a file of settings that is read so does.
    Text that is not in sight may."""
    return any(
        not text or _has(name, text)
        for call in table.calls_by_name.named("exec")
        if isinstance(call.func, ast.Name) and call.args
        for text in [" ".join(_literal_parts(call.args[0]))]
    )


def _texts(table: NameTable, told: Told) -> Iterator[str | None]:
    """What is evaluated; None for what is not in sight."""
    for call in table.calls_by_name.of(ASKED):
        if not isinstance(call.func, ast.Name) or table.within[call.func].lookup(call.func.id):
            continue
        if call.func.id == "globals":
            yield from _keys(call, table, told)
        elif call.func.id in EVALUATING and call.args:
            yield " ".join(_literal_parts(call.args[0])) or None


def _keys(call: ast.Call, table: NameTable, told: Told) -> Iterator[str | None]:
    """The keys by which ``globals()`` is asked at one place."""
    match table.parents[call]:
        case ast.Subscript(value=inside, slice=key, ctx=context) if inside is call:
            if not isinstance(context, ast.Load):
                return  # it binds a name, or deletes one
        case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[asked]) if (
            asked is call
        ):
            pass
        case ast.Attribute(attr="get") as method:
            get = table.parents[method]
            key = get.args[0] if isinstance(get, ast.Call) and get.args else method
        case _:
            yield None
            return
    if isinstance(key, ast.Constant):
        yield str(key.value)
        return
    known = told(key)
    if known is None:
        yield None
    else:
        yield from known


def _has(name: str, text: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def _literal_parts(text: ast.expr) -> Iterator[str]:
    values = text.values if isinstance(text, ast.JoinedStr) else [text]
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value
