"""What comments in configurations say to us."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from fsdp_migrate.configurations.formats.text import Span, Text
from fsdp_migrate.configurations.formats.tree import Mapping, Node, Scalar
from fsdp_migrate.configurations.formats.tree import Sequence as ListNode
from fsdp_migrate.syntax import suppressions
from fsdp_migrate.syntax.suppressions import NOTHING, Remarks


def remarks(text: Text, words: Iterable[Span]) -> Remarks:
    """What a text's comments say; ``#`` inside of ``words`` begins none."""
    if suppressions.IGNORE not in text.text and suppressions.MARKER not in text.text:
        return NOTHING
    listed = sorted(words)
    starts = [start for start, _ in listed]
    comments: list[tuple[int, int, str]] = []
    alone: set[int] = set()
    for line in range(1, text.count() + 1):
        begin = text.start_of(line)
        for match in re.finditer(r"(?:(?<=\s)|^)#", text.line(line)):
            at = begin + match.start()
            index = bisect_right(starts, at) - 1
            if index >= 0 and listed[index].end > at:
                continue
            comments.append((line, match.start() + 1, text.line(line)[match.start() :]))
            if text.indent_at(at) is not None:
                alone.add(line)
            break
    rest = [n for n in range(1, text.count() + 1) if n not in alone and text.line(n).strip()]
    return suppressions.of_comments(comments, alone, rest, rest[0] if rest else None)


def words_of(documents: Sequence[Node]) -> list[Span]:
    """The places of all keys and scalars."""
    found: list[Span] = []
    waiting: list[Node] = list(documents)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Scalar):
            found.append(Span(node.start, node.end))
        elif isinstance(node, ListNode):
            waiting += node.items
        elif isinstance(node, Mapping):
            found += [pair.at for pair in node.pairs]
            waiting += [pair.value for pair in node.pairs]
    return found
