"""Annotations that are written as strings, and type comments: names that no ``ast.Name`` shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from fsdp_migrate.names import NameTable

if TYPE_CHECKING:
    from fsdp_migrate.source import Source

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
        if _is_annotation(constant, table):
            assert isinstance(constant.value, str)
            expression = _parsed(constant.value)
            if expression is not None:
                yield Quoted(constant, expression)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_annotation(constant: ast.Constant, table: NameTable) -> bool:
    child: ast.AST = constant
    for parent in table.ancestors(constant):
        match parent:
            case ast.arg(annotation=annotation) | ast.AnnAssign(annotation=annotation):
                return child is annotation or _is_alias(parent, child)
            case ast.FunctionDef(returns=returns) | ast.AsyncFunctionDef(returns=returns):
                return child is returns
            case ast.Subscript(value=value):
                called = _last(value)
                if child is value or called == "Literal":
                    return False
                if called == "Annotated" and child is not parent.slice:
                    return False
            case ast.Tuple(elts=[first, *_]):
                above = table.parents[parent]
                annotated = isinstance(above, ast.Subscript) and _last(above.value) == "Annotated"
                if annotated and child is not first:
                    return False
            case ast.Call(func=func, args=args):
                return bool(_last(func) == "cast" and args and args[0] is child)
            case ast.keyword(arg="bound"):
                call = table.parents[parent]
                return isinstance(call, ast.Call) and _last(call.func) == "TypeVar"
            case ast.BinOp() | ast.List():
                pass
            case _:
                return False
        child = parent
    return False


def _is_alias(node: ast.AST, value: ast.AST) -> bool:
    """``Model: TypeAlias = "FSDP | None"``."""
    alias = isinstance(node, ast.AnnAssign) and _last(node.annotation) == "TypeAlias"
    return alias and getattr(node, "value", None) is value


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def in_type_comments(source: Source) -> frozenset[str]:
    """The names in the type comments of a file."""
    if "type:" not in source.text:
        return frozenset()
    found = TYPE_COMMENT.findall("\n".join(source.lines))
    return frozenset(name for text in found for name in re.findall(r"[A-Za-z_]\w*", text))
