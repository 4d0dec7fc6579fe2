"""Comma-separated items: some are removed, or one is added, and the others keep their comments.

Between two items stands a *gap*: the rest of the first item's line, comment included, belongs to
the first; own-line comments and the indent that follow belong to the second.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

import libcst as cst

Item = TypeVar("Item", cst.Arg, cst.ImportAlias)
Gap = cst.BaseParenthesizableWhitespace


def without(items: Sequence[Item], gone: Collection[int], opening: Gap) -> tuple[list[Item], Gap]:
    """``items`` without those at the indices ``gone``, and the whitespace before the first."""
    gaps: list[Gap] = [opening]
    for item in items:
        comma = item.comma
        gaps.append(comma.whitespace_after if isinstance(comma, cst.Comma) else _closing(item))
    kept = [index for index in range(len(items)) if index not in gone]
    if not kept:
        return [], cst.SimpleWhitespace("")
    result: list[Item] = []
    trailing = isinstance(items[-1].comma, cst.Comma)
    for position, index in enumerate(kept):
        last = position == len(kept) - 1
        following = len(items) if last else kept[position + 1]
        gap = _joined(gaps[index + 1], gaps[following])
        item = items[index]
        if last and not trailing:
            item = item.with_changes(comma=cst.MaybeSentinel.DEFAULT)
            if isinstance(item, cst.Arg):
                item = item.with_changes(whitespace_after_arg=gap)
        elif index + 1 == following and isinstance(item.comma, cst.Comma):
            pass  # nothing between it and its neighbour was removed
        else:
            item = item.with_changes(comma=cst.Comma(whitespace_after=gap))
        result.append(item)
    first = gaps[kept[0]]
    on_one_line = isinstance(opening, cst.SimpleWhitespace) and isinstance(first, type(opening))
    return result, opening if on_one_line else _joined(opening, first)


def without_items(
    items: Sequence[cst.BaseDictElement], gone: Collection[int], closing: Gap
) -> tuple[list[cst.BaseDictElement], Gap]:
    """The items of a dictionary without those at the indices ``gone``, and the whitespace before
    the brace, which the last item's comment is a part of."""
    kept = [index for index in range(len(items)) if index not in gone]
    gaps = [i.comma.whitespace_after for i in items[:-1] if isinstance(i.comma, cst.Comma)]
    result: list[cst.BaseDictElement] = []
    for position, index in enumerate(kept):
        following = (*kept, len(items))[position + 1]
        item = items[index]
        if following == len(items) > index + 1:
            item = item.with_changes(comma=items[-1].comma)
            closing = _joined(gaps[index], closing)
        elif following > index + 1:
            gap = _joined(gaps[index], gaps[following - 1])
            item = item.with_changes(comma=cst.Comma(whitespace_after=gap))
        result.append(item)
    return result, closing


def with_item(
    items: list[cst.BaseDictElement], key: str, value: cst.BaseExpression, opening: Gap
) -> list[cst.BaseDictElement]:
    """The items of a dictionary with one more, laid out like the last one.

    Args:
        opening: what precedes them all.
    """
    new = cst.DictElement(cst.SimpleString(f'"{key}"'), value)
    if not items:
        return [new]
    *others, last = items
    gap: Gap = cst.SimpleWhitespace(" ")
    if isinstance(opening, cst.ParenthesizedWhitespace):
        gap = plain(opening)
    if isinstance(last.comma, cst.Comma):
        closing = last.comma.whitespace_after
        if isinstance(closing, cst.ParenthesizedWhitespace) and isinstance(
            gap, cst.ParenthesizedWhitespace
        ):
            gap = gap.with_changes(first_line=closing.first_line)  # a comment stays behind
        new = new.with_changes(comma=last.comma.with_changes(whitespace_after=plain(closing)))
    return [*others, last.with_changes(comma=cst.Comma(whitespace_after=gap)), new]


_SPACE = cst.SimpleWhitespace(" ")


def _closing(item: cst.Arg | cst.ImportAlias) -> Gap:
    if isinstance(item, cst.Arg):
        return item.whitespace_after_arg
    return cst.SimpleWhitespace("")


def _joined(head: Gap, tail: Gap) -> Gap:
    """The end of ``head``'s line and the beginning of what follows ``tail``."""
    if not isinstance(head, cst.ParenthesizedWhitespace):
        return tail
    if not isinstance(tail, cst.ParenthesizedWhitespace):
        return head
    return tail.with_changes(first_line=head.first_line)


def plain(gap: Gap) -> Gap:
    """A gap without its comments."""
    if isinstance(gap, cst.ParenthesizedWhitespace):
        return gap.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=())
    return gap


def with_keyword(
    args: list[cst.Arg],
    name: str,
    value: cst.BaseExpression,
    opening: cst.BaseParenthesizableWhitespace,
) -> list[cst.Arg]:
    """``args`` with one more keyword, ``**value`` for a ``name`` of two stars.

    It is laid out like the last one; ``opening`` precedes them all.
    """
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    if name == "**":
        new = cst.Arg(value=value, star="**")
    else:
        new = cst.Arg(value=value, keyword=cst.Name(name), equal=tight)
    if not args:
        return [new]
    last = args[-1]
    if not isinstance(last.comma, cst.Comma):
        before = args[-2].comma if len(args) > 1 else None
        gap: Gap = plain(before.whitespace_after) if isinstance(before, cst.Comma) else _SPACE
        comma = cst.Comma(whitespace_after=gap)
        closing = last.whitespace_after_arg
        last = last.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace(""))
        return [*args[:-1], last, new.with_changes(whitespace_after_arg=closing)]
    closing = last.comma.whitespace_after
    between: cst.BaseParenthesizableWhitespace = closing
    if len(args) > 1 and isinstance(args[-2].comma, cst.Comma):
        between = plain(args[-2].comma.whitespace_after)
    elif isinstance(opening, cst.ParenthesizedWhitespace):
        between = plain(opening)
    if isinstance(closing, cst.ParenthesizedWhitespace) and isinstance(
        between, cst.ParenthesizedWhitespace
    ):
        between = between.with_changes(first_line=closing.first_line)  # a comment stays behind
    comma = last.comma.with_changes(whitespace_after=plain(closing))
    return [
        *args[:-1],
        last.with_changes(comma=cst.Comma(whitespace_after=between)),
        new.with_changes(comma=comma),
    ]
