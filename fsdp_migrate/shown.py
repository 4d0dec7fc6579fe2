"""Texts of others as they are shown: what a terminal, a log or a reader would obey is escaped.

File names, source text, messages of git and of Python may hold anything. A *line* is one name or
sentence and stays one line; a *text* keeps its line ends and tabs.
"""

from __future__ import annotations

import re

# C0, DEL, C1; what separates lines or turns text about; halves of characters; no characters.
_LEFT_IN_TEXT = r"\x00-\x08\x0b-\x1f\x7f-\x9f"
_EVERYWHERE = r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff"
# What nobody sees: in a name it makes two look alike; in a text it may join or part letters.
INVISIBLE = r"\xad\u180e\u200b-\u200d\u2060-\u2064\ufeff\U000e0000-\U000e007f"
_TEXT = re.compile(f"[{_LEFT_IN_TEXT}{_EVERYWHERE}]")
# CI services take "##[warning]" and "##vso[...]" for commands wherever they stand in a line.
_LINE = re.compile(rf"[\t\n{_LEFT_IN_TEXT}{_EVERYWHERE}{INVISIBLE}]|(?<=#)#(?=\w*\[)")


def line(value: str) -> str:
    """A name or a sentence, on one line."""
    return _LINE.sub(_escaped, value)


def text(value: str) -> str:
    """Several lines."""
    return _TEXT.sub(_escaped, value)


def path(value: str) -> str:
    """The name of a file; it does not begin like a command that GitHub reads in logs."""
    return line(f"./{value}" if value.lstrip().startswith("::") else value)


def in_json(document: str) -> str:
    """A JSON document with the same values, and nothing in it that a terminal obeys.

    Only its strings can hold such characters.
    """
    return _TEXT.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def number(character: str) -> str:
    """A character by its number, always in the same form."""
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    return "\\x23" if character == "#" else character.encode("unicode_escape").decode()
