"""Laying out a statement on as many lines as it needs, the way black does it."""

from __future__ import annotations

import re

WIDTH = 88  # of emitted lines, black's
INDENT = " " * 4


def shifted(line: str, by: int) -> str:
    return line if not by or not line else (" " * by + line if by > 0 else line[-by:])


def joined(text: str) -> str:
    """A statement on one line."""
    text = re.sub(r"\s*\n\s*", " ", text)
    return re.sub(r",? ([)\]}])", r"\1", re.sub(r"([(\[{]) ", r"\1", text))


def wrapped(line: str, indent: str = "") -> list[str]:
    """A statement on as many lines as it needs, laid out as black does it."""
    if len(indent + line) <= WIDTH:
        return [indent + line]
    opened: list[int] = []
    pairs: list[tuple[int, int]] = []
    for at, character in enumerate(line):
        if character in "([{":
            opened.append(at)
        elif character in ")]}":
            start = opened.pop()
            if not opened:
                pairs.append((start, at))
    if not pairs:
        return [indent + line]
    start, end = max(pairs, key=lambda pair: pair[1] - pair[0])
    inner, inside = indent + INDENT, line[start + 1 : end]
    if len(inner + inside) <= WIDTH:
        middle = [inner + inside]
    else:
        middle = [part for each in _parts(inside) for part in wrapped(f"{each},", inner)]
    return [indent + line[: start + 1], *middle, indent + line[end:]]


def _parts(text: str) -> list[str]:
    """What commas part, outside of brackets."""
    found, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            found.append("")
        else:
            found[-1] += character
    return [part.strip() for part in found if part.strip()]
