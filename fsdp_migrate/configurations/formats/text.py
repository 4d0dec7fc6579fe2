"""Places in a text, and edits of it. Offsets count characters."""

from __future__ import annotations

import re
import textwrap
from bisect import bisect_right
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

from fsdp_migrate.syntax import suppressions

NARROWEST = 60  # columns that a marker may have, however deep it stands
_LINE_END = re.compile(r"\r\n|\n|\r")


class Span(NamedTuple):
    start: int
    end: int


class Edit(NamedTuple):
    """``text`` in the place of what stands from ``start`` to ``end``."""

    start: int
    end: int
    text: str


class Refused(Exception):
    """Something cannot be edited; the message says why."""


class Text:
    """A file's text and its lines."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def starts(self) -> list[int]:
        """Where each line begins."""
        return [0, *(match.end() for match in _LINE_END.finditer(self.text))]

    @cached_property
    def newline(self) -> str:
        match = _LINE_END.search(self.text)
        return match[0] if match is not None else "\n"

    def line_at(self, offset: int) -> int:
        """The number of a line, from 1."""
        return bisect_right(self.starts, offset)

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column, from 1."""
        line = self.line_at(offset)
        return line, offset - self.starts[line - 1] + 1

    def start_of(self, line: int) -> int:
        return self.starts[line - 1]

    def end_of(self, line: int) -> int:
        """Where a line ends, with what ends it."""
        return self.starts[line] if line < len(self.starts) else len(self.text)

    def line(self, line: int) -> str:
        """A line without its end."""
        return self.text[self.start_of(line) : self.end_of(line)].rstrip("\r\n")

    def indent_at(self, offset: int) -> str | None:
        """The white space before an offset, if nothing else stands before it on its line."""
        before = self.text[self.start_of(self.line_at(offset)) : offset]
        return before if not before.strip(" \t\ufeff") else None

    def count(self) -> int:
        """How many lines there are, an empty one behind the last line's end not counted."""
        return len(self.starts) - (self.starts[-1] == len(self.text))


def applied(text: str, edits: Iterable[Edit]) -> str:
    """The text with all edits; those at one place in their order.

    Raises:
        Refused: two of them overlap.
    """
    parts = []
    done = 0
    for start, end, new in sorted(edits, key=lambda edit: edit[:2]):
        if start < done:
            raise Refused("two changes of it meet in one place")
        parts += [text[done:start], new]
        done = end
    return "".join([*parts, text[done:]])


def marker(code: str, sentence: str, width: int, begin: str = "# ") -> list[str]:
    """The lines of a marker, wrapped as those in Python are."""
    return textwrap.wrap(
        f"{begin}{suppressions.MARKER} {code}): {sentence}",
        max(width, NARROWEST),
        subsequent_indent=suppressions.CONTINUED,
        break_long_words=False,
        break_on_hyphens=False,
    )
