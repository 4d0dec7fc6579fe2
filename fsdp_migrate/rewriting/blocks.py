"""Statements that leave their block, or join one."""

from __future__ import annotations

import libcst as cst

from fsdp_migrate.rewriting.comments import GONE
from fsdp_migrate.rewriting.layout import Line


def dedented(body: cst.BaseSuite) -> list[Line]:
    """The statements of a body, to stand in the place of what it was the body of."""
    if isinstance(body, cst.SimpleStatementSuite):
        return [cst.SimpleStatementLine([s]) for s in body.body]
    assert isinstance(body, cst.IndentedBlock)
    lines = list(body.body)
    comments = [
        cst.EmptyLine(comment=h.comment)
        for h in [body.header]
        if isinstance(h, cst.TrailingWhitespace) and h.comment is not None
    ]
    if lines:
        above = list(getattr(lines[0], "leading_lines", ()))
        while above and above[0].comment is None:
            above.pop(0)  # the blank line under the with
        lines[0] = lines[0].with_changes(leading_lines=[*comments, *above])
    if any(line.comment is not None for line in body.footer):
        lines.append(cst.SimpleStatementLine([cst.Expr(cst.Name(GONE))], leading_lines=body.footer))
    return lines  # type: ignore[return-value]  # an IndentedBlock holds statements only


def joined(lines: list[Line]) -> list[Line]:
    """New lines, those under one condition put together."""
    found: list[Line] = []
    for line in lines:
        last = found[-1] if found else None
        if isinstance(last, cst.If) and isinstance(line, cst.If) and _same_condition(last, line):
            lines = [*last.body.body, *line.body.body]
            found[-1] = last.with_changes(body=last.body.with_changes(body=lines))
        else:
            found.append(line)
    return found


def _same_condition(first: cst.If, second: cst.If) -> bool:
    alone = first.orelse is None and second.orelse is None
    return alone and first.test.deep_equals(second.test)
