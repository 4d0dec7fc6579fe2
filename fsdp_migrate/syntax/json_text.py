"""Where values stand in the text of a JSON file, which ``json`` alone does not tell."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from json.decoder import JSONDecoder
from typing import Any

_SPACE = re.compile(r"[ \t\r\n]*")
_PIECE = re.compile(r"\\n|\\u000[aA]")


def skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found is not None else at


_DECODER = JSONDecoder()


def value_at(text: str, at: int) -> tuple[Any, int]:
    """A JSON value and where it ends."""
    return _DECODER.raw_decode(text, at)


def closing_end(text: str, at: int, bracket: str) -> int:
    at = skip_space(text, at)
    if text[at : at + 1] != bracket:
        raise json.JSONDecodeError(f"Expecting ',' or '{bracket}'", text, at)
    return at + 1


def members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Key, start and end of every value of the JSON object at ``at``."""
    at = skip_space(text, at + 1)
    while text[at : at + 1] != "}":
        key, end = value_at(text, at)
        at = skip_space(text, end)
        if not isinstance(key, str) or text[at : at + 1] != ":":
            raise json.JSONDecodeError("Expecting a name and ':'", text, at)
        start = skip_space(text, at + 1)
        end = value_at(text, start)[1]
        yield key, start, end
        at = skip_space(text, end)
        if text[at : at + 1] != ",":
            break
        at = skip_space(text, at + 1)


def elements(text: str, at: int) -> Iterator[tuple[int, int]]:
    """Start and end of every value of the JSON array at ``at``, which is known to be whole."""
    at = skip_space(text, at + 1)
    while text[at] != "]":
        end = value_at(text, at)[1]
        yield at, end
        at = skip_space(text, end)
        if text[at] == ",":
            at = skip_space(text, at + 1)


def lines_of_string(spelled: str) -> Iterator[str]:
    """The parts of the inside of a JSON string that end with a line end."""
    at = done = 0
    while (found := spelled.find("\\", at)) != -1:
        newline = _PIECE.match(spelled, found)
        at = newline.end() if newline is not None else found + 2
        if newline is not None:
            yield spelled[done:at]
            done = at
    if spelled[done:]:
        yield spelled[done:]
