"""Which changed statements of the migrated program no run came by.

Statements are compared by what they do, so comments and layout count for nothing. One that stands
under another condition than before is a changed one as well.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from types import CodeType

_CONDITIONS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class _Statement:
    """A statement without those within it: what it says, under which conditions, and where."""

    says: tuple[str, ...]
    first: int
    last: int


def changed_and_not_executed(
    before: bytes, after: bytes, executed: Collection[int]
) -> list[tuple[int, int]]:
    """First and last lines of such blocks in ``after``, which stood as ``before``.

    Nothing where one of the two is no Python.
    """
    blocks: list[tuple[int, int]] = []
    goes_on = False
    for statement, changed in _with_code(before, after):
        ran = any(statement.first <= line <= statement.last for line in executed)
        if not changed or ran:
            goes_on = False
        elif goes_on:
            blocks[-1] = (blocks[-1][0], statement.last)
        else:
            blocks.append((statement.first, statement.last))
            goes_on = True
    return blocks


def changed_statements(before: bytes, after: bytes) -> list[tuple[int, int]]:
    """First and last line of every changed statement of ``after``, without those within it."""
    return [(s.first, s.last) for s, changed in _with_code(before, after) if changed]


def _with_code(before: bytes, after: bytes) -> Iterator[tuple[_Statement, bool]]:
    """The statements of ``after`` that something is executed for, and whether each is changed."""
    try:
        old, new = (list(_statements(ast.parse(text).body)) for text in (before, after))
        with_code = set(_lines(compile(after, "after", "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):
        return
    matcher = SequenceMatcher(None, [s.says for s in old], [s.says for s in new], autojunk=False)
    same = {match.b + n for match in matcher.get_matching_blocks() for n in range(match.size)}
    for number, statement in enumerate(new):
        # Not a docstring, nor a declaration.
        if not with_code.isdisjoint(range(statement.first, statement.last + 1)):
            yield statement, number not in same


def _statements(body: list[ast.stmt], under: tuple[str, ...] = ()) -> Iterator[_Statement]:
    """All statements in the order in which they stand; ``under`` which conditions."""
    for node in body:
        inner = list(_inner(node))
        first = _begins(node)
        begins = min((_begins(statements[0]) for _, statements in inner if statements), default=0)
        last = max(first, begins - 1) if begins else node.end_lineno or first
        header = _header(node)
        documents = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if documents or header == "if TYPE_CHECKING":
            continue  # never executed
        if header != "try":
            yield _Statement((*under, header), first, last)
        under_it = () if isinstance(node, _SCOPES) else (*under, header)
        for part, statements in inner:
            yield from _statements(statements, (*under_it, part) if part else under_it)


def _inner(node: ast.stmt) -> Iterator[tuple[str, list[ast.stmt]]]:
    """The statements within a statement, by the part of it that they stand in."""
    yield "", getattr(node, "body", [])
    for handler in getattr(node, "handlers", ()):
        caught = ast.unparse(handler.type) if handler.type is not None else ""
        yield f"except {caught}", handler.body
    for case in getattr(node, "cases", ()):
        guard = f" if {ast.unparse(case.guard)}" if case.guard is not None else ""
        yield f"case {ast.unparse(case.pattern)}{guard}", case.body
    yield "else", getattr(node, "orelse", [])
    yield "finally", getattr(node, "finalbody", [])


def _begins(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def _header(node: ast.stmt) -> str:
    """What a statement says by itself."""
    if not any(statements for _, statements in _inner(node)):
        return ast.unparse(node)
    if isinstance(node, ast.Match):
        return f"match {ast.unparse(node.subject)}"
    if not isinstance(node, (*_SCOPES, *_CONDITIONS)):
        return "try"
    alone = copy.copy(node)
    alone.body = [ast.Pass()]
    if isinstance(alone, ast.If | ast.For | ast.AsyncFor | ast.While):
        alone.orelse = []
    return ast.unparse(alone).rpartition(":\n")[0]


def _lines(code: CodeType) -> Iterator[int]:
    """The lines that instructions belong to, which debuggers stop at."""
    yield from (line for _, _, line in code.co_lines() if line)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _lines(constant)
