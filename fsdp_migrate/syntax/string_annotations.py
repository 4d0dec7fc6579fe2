"""Annotations that are written as strings, and type comments: names that no ``ast.Name`` shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from fsdp_migrate.syntax import type_expressions
from fsdp_migrate.syntax.name_table import NameTable

if TYPE_CHECKING:
    from fsdp_migrate.syntax.source import Source

TYPE_COMMENT = re.compile(r"#\s*type:\s*(?!ignore\b)(.*)")


@dataclass(frozen=True)
class Quoted:
    """A string that is an annotation, and the expression it holds."""

    string: ast.Constant
    expression: ast.expr

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(n.id for n in ast.walk(self.expression) if isinstance(n, ast.Name))


_known: WeakKeyDictionary[NameTable, tuple[Quoted, ...]] = WeakKeyDictionary()


def in_annotations(table: NameTable) -> tuple[Quoted, ...]:
    """The annotations, arguments of ``cast`` and bounds of type variables that are strings."""
    if table not in _known:
        _known[table] = tuple(_in_annotations(table))
    return _known[table]


def _in_annotations(table: NameTable) -> Iterator[Quoted]:
    for constant in table.strings:
        if type_expressions.is_type(constant, table):
            expression = parsed(str(constant.value))
            if expression is not None:
                yield Quoted(constant, expression)


@lru_cache(maxsize=1024)
def parsed(text: str) -> ast.expr | None:
    """The expression a quoted type holds; None when it is none."""
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def in_type_comments(source: Source) -> frozenset[str]:
    """The names in the type comments of a file."""
    if "type:" not in source.text:
        return frozenset()
    found = TYPE_COMMENT.findall("\n".join(source.lines))
    return frozenset(name for text in found for name in re.findall(r"[A-Za-z_]\w*", text))
