"""JSON with places, as the same tree that YAML becomes."""

from __future__ import annotations

import json
from collections.abc import Iterator

from fsdp_migrate.configurations.formats.text import Span
from fsdp_migrate.configurations.formats.tree import Mapping, Node, Pair, Scalar, Sequence
from fsdp_migrate.configurations.formats.yaml import TEMPLATE
from fsdp_migrate.configurations.settings import Value
from fsdp_migrate.syntax import json_text

DEEPEST = 100  # levels; no configuration has as many


class NotJson(Exception):
    """The text is no JSON; where is known by line and column, from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.message, self.line, self.column = message, line, column


def read(text: str) -> Node:
    """The value of a text.

    Raises:
        NotJson: it cannot be read.
    """
    start = json_text.skip_space(text, 1 if text.startswith("\ufeff") else 0)
    try:
        _, end = json_text.value_at(text, start)
        if json_text.skip_space(text, end) != len(text):
            raise json.JSONDecodeError("Extra data", text, end)
        return _node(text, start, end, 0)
    except json.JSONDecodeError as error:
        raise NotJson(error.msg, error.lineno, error.colno) from None
    except RecursionError:
        raise NotJson("it is nested too deep", 1, 1) from None


def _node(text: str, start: int, end: int, depth: int) -> Node:
    if depth > DEEPEST:
        raise RecursionError
    if text[start] == "{":
        pairs = list(_pairs(text, start, depth))
        return Mapping(start, end, pairs=pairs, flow=True)
    if text[start] == "[":
        items = [_node(text, s, e, depth + 1) for s, e in json_text.elements(text, start)]
        return Sequence(start, end, items=items)
    value, _ = json_text.value_at(text, start)
    quote = '"' if text[start] == '"' else ""
    unknown = TEMPLATE if isinstance(value, str) and ("${" in value or "{{" in value) else ""
    return Scalar(start, end, value=value, quote=quote, unknown=unknown)


def _pairs(text: str, start: int, depth: int) -> Iterator[Pair]:
    at = json_text.skip_space(text, start + 1)
    for key, first, end in json_text.members(text, start):
        at = json_text.skip_space(text, at)
        key_end = json_text.value_at(text, at)[1]
        yield Pair(key, Span(at, key_end), _node(text, first, end, depth + 1), '"')
        at = json_text.skip_space(text, json_text.skip_space(text, end) + 1)


def written(value: Value, quote: str = "") -> str:
    return json.dumps(value, ensure_ascii=False)
