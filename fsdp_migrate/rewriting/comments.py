"""Comments and markers around statements that are replaced, removed or moved."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TypeVar

import libcst as cst

from fsdp_migrate.rewriting.layout import Line

GONE = "__fsdp_migrate_gone__"


Block = TypeVar("Block", cst.Module, cst.IndentedBlock)


def gone(
    leading: Sequence[cst.EmptyLine], *, about_it: bool = True
) -> cst.SimpleStatementLine | cst.RemovalSentinel:
    """What a removed statement leaves behind: comments above it, for the next statement.

    With ``about_it``, a comment right above the statement was about it and goes with it.
    """
    kept = list(leading)
    while about_it and kept and kept[-1].comment is not None:
        kept.pop()
    if not any(line.comment is not None for line in kept):
        return cst.RemoveFromParent()
    return cst.SimpleStatementLine([cst.Expr(cst.Name(GONE))], leading_lines=kept)


def comments_kept(block: Block) -> Block:
    """Hand the comments of removed statements to the statements that follow them."""
    body: list[cst.BaseStatement] = []
    waiting: list[cst.EmptyLine] = []
    for statement in block.body:
        if is_gone(statement):
            waiting += getattr(statement, "leading_lines", ())
        elif waiting:
            above: Sequence[cst.EmptyLine] = getattr(statement, "leading_lines", ())
            body.append(statement.with_changes(leading_lines=[*waiting, *above]))
            waiting = []
        else:
            body.append(statement)
    if len(body) == len(block.body) and not waiting:
        return block
    return block.with_changes(body=body, footer=[*waiting, *block.footer])


def is_gone(statement: cst.CSTNode) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine) or not statement.body:
        return False
    small = statement.body[0]
    named = isinstance(small, cst.Expr) and isinstance(small.value, cst.Name)
    return named and cst.ensure_type(cst.ensure_type(small, cst.Expr).value, cst.Name).value == GONE


def of_branch(part: cst.If | cst.Else) -> list[cst.EmptyLine]:
    """The comments above an ``elif`` or an ``else``."""
    return [line for line in part.leading_lines if line.comment is not None]


def above(line: Line, comments: Sequence[str]) -> Line:
    """``line`` with own-line comments above it."""
    if not comments:
        return line
    leading = [cst.EmptyLine(comment=cst.Comment(text)) for text in comments]
    return line.with_changes(leading_lines=[*leading, *getattr(line, "leading_lines", ())])


def spans(node: ast.AST, line: int, column: int) -> bool:
    """Whether a position lies within a node."""
    assert isinstance(node, ast.expr)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start = (node.lineno, node.col_offset)
    return start <= (line, column) < (node.end_lineno, node.end_col_offset)


def owner(nodes: Sequence[ast.AST], line: int, column: int) -> ast.AST | None:
    """What a comment is about: what ends before it on its line, else what follows it."""
    before = [
        n
        for n in nodes
        if getattr(n, "end_lineno", 0) == line and getattr(n, "end_col_offset", 0) <= column
    ]
    if before:
        return min(before, key=lambda n: getattr(n, "col_offset", 0))
    after = [n for n in nodes if getattr(n, "lineno", 0) > line]
    return min(after, key=lambda n: (n.lineno, n.col_offset), default=None)  # type: ignore[attr-defined]
