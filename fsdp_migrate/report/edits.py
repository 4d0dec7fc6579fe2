"""What is to be changed in files, as spans of lines: for programs that make changes themselves.

A migration is whole in all of its files or it is none, so that these belong together.
"""

from __future__ import annotations

import difflib
import io
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """``text`` in the place of the lines from ``line`` up to ``end_line``, which is not one of
    them."""

    line: int
    end_line: int
    text: str


def edits(before: str, after: str) -> Iterator[Edit]:
    """What makes one text of another."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for kind, first, last, begin, end in matcher.get_opcodes():
        if kind != "equal":
            yield Edit(first + 1, last + 1, "".join(new[begin:end]))


def listed(contents: Mapping[str, tuple[str, str]]) -> list[dict[str, object]]:
    """The changed files with their edits, as JSON has them."""
    return [
        {"path": path, "edits": as_json(edits(before, after))}
        for path, (before, after) in contents.items()
        if before != after
    ]


def as_json(found: Iterable[Edit]) -> list[dict[str, object]]:
    """Edits of one file."""
    return [{"line": e.line, "end_line": e.end_line, "text": e.text} for e in found]


def text(data: bytes) -> str | None:
    """A file's text with newlines as line ends."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        found = data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError):
        return None
    return found.replace("\r\n", "\n").replace("\r", "\n")
