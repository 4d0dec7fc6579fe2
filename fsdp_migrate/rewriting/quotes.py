"""Quotes of strings inside f-strings: before Python 3.12 they are others than those around."""

from __future__ import annotations

import libcst as cst


def told_apart(original: cst.FormattedString, edited: cst.FormattedString) -> cst.FormattedString:
    """An f-string whose inner strings have other quotes than its own, if edits gave them the same.

    ``f"{name.removeprefix("FSDP")}"`` parses since Python 3.12 alone; what was written so stays.
    """
    around = original.end
    if _uses(around, original):
        return edited
    other = "'" if around.startswith('"') else '"'
    fitted = edited.visit(_Requoted(around, other))
    return cst.ensure_type(fitted, cst.FormattedString)


def _uses(quote: str, text: cst.FormattedString) -> bool:
    """Whether a string inside of an f-string has the quotes that are around it."""
    found: list[cst.SimpleString] = []
    text.visit(_Strings(found))
    return any(string.value.endswith(quote) for string in found)


class _Strings(cst.CSTVisitor):
    def __init__(self, found: list[cst.SimpleString]) -> None:
        super().__init__()
        self.found = found

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        self.found.append(node)


class _Requoted(cst.CSTTransformer):
    """Gives the strings with one kind of quotes the other, where nothing in them stands against."""

    def __init__(self, quote: str, other: str) -> None:
        super().__init__()
        self.quote = quote
        self.other = other

    def leave_SimpleString(
        self, original_node: cst.SimpleString, updated_node: cst.SimpleString
    ) -> cst.SimpleString:
        inner = updated_node.raw_value
        if updated_node.quote != self.quote or self.other in inner or "\\" in inner:
            return updated_node
        return updated_node.with_changes(
            value=f"{updated_node.prefix}{self.other}{inner}{self.other}"
        )
