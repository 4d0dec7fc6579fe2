"""Statements that leave their block or are put into another: of an ``if`` chain, of a ``with``."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from fsdp_migrate.rewriting import comments
from fsdp_migrate.rewriting.layout import Line
from fsdp_migrate.syntax.kinds import of_kind


def next_branch(chain: cst.If, following: cst.If) -> cst.If:
    """An ``if`` chain without its ``if``: the ``elif`` begins it."""
    return following.with_changes(leading_lines=[*chain.leading_lines, *_comments(following)])


def else_body(chain: cst.If) -> list[Line]:
    """An ``if`` chain without its ``if``: the statements of its ``else``, where it has one."""
    following = chain.orelse
    kept = _dedented(following.body) if isinstance(following, cst.Else) else []
    if following is None or not kept:
        return comments.leave(chain.leading_lines)
    kept[0] = comments.put_above([*chain.leading_lines, *_comments(following)], kept[0])
    return kept


def _comments(branch: cst.If | cst.Else) -> list[cst.EmptyLine]:
    """The comments above an ``elif`` or an ``else``."""
    return [line for line in branch.leading_lines if line.comment is not None]


def without_items(node: cst.With, gone: Collection[int]) -> list[Line]:
    """A ``with`` without some of its items; its dedented body when none is left."""
    kept = [item for index, item in enumerate(node.items) if index not in gone]
    if not kept:
        return _dedented(node.body)
    kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return [node.with_changes(items=kept)]


def _dedented(body: cst.BaseSuite) -> list[Line]:
    """The statements of a body, to stand in the place of what it was the body of."""
    if isinstance(body, cst.SimpleStatementSuite):
        return [cst.SimpleStatementLine([s]) for s in body.body]
    body = of_kind(body, cst.IndentedBlock)
    lines: list[Line] = list(body.body)  # type: ignore[arg-type]  # an IndentedBlock holds statements only
    if lines:
        behind = body.header.comment if isinstance(body.header, cst.TrailingWhitespace) else None
        above = comments.from_first_comment(comments.leading_lines(lines[0]))
        header = [cst.EmptyLine(comment=behind)] if behind is not None else []
        lines[0] = lines[0].with_changes(leading_lines=[*header, *above])
    if any(line.comment is not None for line in body.footer):
        lines.append(comments.placeholder(body.footer))
    return lines


def indented_alike(original: cst.IndentedBlock, updated: cst.IndentedBlock) -> cst.IndentedBlock:
    """A block in which new blocks are indented with tabs as it is, and as all old ones in it are,
    where most of the file is not."""
    step = original.indent
    if step != "\t" or any(block.indent is None for block in _blocks_in(original)):
        return updated
    indented = updated.visit(_Indenting(step))
    return of_kind(indented, cst.IndentedBlock)


def _blocks_in(node: cst.CSTNode) -> Iterator[cst.IndentedBlock]:
    for child in node.children:
        if isinstance(child, cst.IndentedBlock):
            yield child
        yield from _blocks_in(child)


class _Indenting(cst.CSTTransformer):
    def __init__(self, step: str) -> None:
        super().__init__()
        self.step = step

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        is_new = original_node.indent is None
        return updated_node.with_changes(indent=self.step) if is_new else updated_node


def join_conditions(lines: list[Line]) -> list[Line]:
    """New lines, those under one condition put together.

    ``if a: x`` and ``if a: y`` become one ``if a:`` with both.
    """
    found: list[Line] = []
    for line in lines:
        last = found[-1] if found else None
        if isinstance(last, cst.If) and isinstance(line, cst.If) and _same_condition(last, line):
            body = last.body.with_changes(body=[*last.body.body, *line.body.body])
            found[-1] = last.with_changes(body=body)
        else:
            found.append(line)
    return found


def _same_condition(first: cst.If, second: cst.If) -> bool:
    alone = first.orelse is None and second.orelse is None
    return alone and first.test.deep_equals(second.test)
