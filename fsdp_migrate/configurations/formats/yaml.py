"""YAML with places: what ruamel.yaml's parser tells, as a tree of our own.

The parser's events have the offsets of everything that is written, aliases included, and building
the tree from them needs no recursion. Values are those of PyYAML, by which accelerate,
transformers and axolotl read their files (``yes`` is true). What fills in a template is masked
before, in as many characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fsdp_migrate.configurations.formats.text import Span
from fsdp_migrate.configurations.formats.tree import Mapping, Node, Pair, Scalar, Sequence
from fsdp_migrate.configurations.settings import Value

DEEPEST = 100  # levels; no configuration has as many
TEMPLATE = "a template fills it in"
_EXPRESSION = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_STATEMENT = re.compile(r"\{%.*?%\}|\{#.*?#\}", re.DOTALL)
_FILLED_IN = re.compile(r"\$\{[^}]*\}|\$\(|\{\{|<<[A-Z_]+>>|<[A-Z][A-Z_]*>")
_MASK = "\ue000"  # what no configuration has
_WORDS: dict[str, Value] = {
    **dict.fromkeys(("yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?")


class NotYaml(Exception):
    """The text is no YAML; where is known by line and column, from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.message, self.line, self.column = message, line, column


def is_template(text: str) -> bool:
    """Whether statements of a template decide what there is of the text."""
    return "{%" in text


def read(text: str) -> list[Node]:
    """The documents of a text.

    Raises:
        NotYaml: it cannot be read.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return list(_Reader(text, YAML(typ="safe", pure=True).parse(_masked(text))).documents())
    except YAMLError as error:
        mark, begun = (getattr(error, f"{m}_mark", None) for m in ("problem", "context"))
        if begun is not None and (mark is None or mark.index >= len(text)):
            mark = begun  # what is never closed
        message = getattr(error, "problem", None) or str(error).split("\n", 1)[0]
        if mark is None:
            at = getattr(error, "position", 0)
            line = text.count("\n", 0, at) + 1
            column = at - (text.rfind("\n", 0, at) + 1) + 1
            raise NotYaml(str(message), line, column) from None
        raise NotYaml(str(message), mark.line + 1, mark.column + 1) from None
    except (
        ValueError,
        AssertionError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise NotYaml(str(error), 1, 1) from None


def _masked(text: str) -> str:
    """The text with what a template has in it as words, or as comments, of the same length."""
    if "{%" in text or "{#" in text:
        text = _STATEMENT.sub(lambda m: re.sub(r"[^\r\n]", " ", m[0]), text)
    if "{{" in text:
        text = _EXPRESSION.sub(lambda m: re.sub(r"[^\r\n]", _MASK, m[0]), text)
    return text


class _Reader:
    def __init__(self, text: str, events: Any) -> None:
        self.text, self.events = text, events

    def documents(self) -> Iterator[Node]:
        open_: list[tuple[Node, list[Node]]] = []  # what is being read, and what is in it
        for event in self.events:
            kind = type(event).__name__
            node: Node
            if kind in {"MappingStartEvent", "SequenceStartEvent"}:
                kept = _why_kept(event)
                start, end = event.start_mark.index, event.end_mark.index
                if kind == "MappingStartEvent":
                    flow = bool(event.flow_style)
                    node = Mapping(start, end, kept, flow=flow)
                else:
                    node = Sequence(start, end, kept)
                open_.append((node, []))
                if len(open_) > DEEPEST:
                    raise ValueError("it is nested too deep")
                continue
            if kind in {"MappingEndEvent", "SequenceEndEvent"}:
                node, parts = open_.pop()
                self._close(node, parts, event)
            elif kind == "ScalarEvent":
                node = self._scalar(event)
            elif kind == "AliasEvent":
                kept = f"*{event.anchor} stands for what is written elsewhere"
                node = Scalar(event.start_mark.index, event.end_mark.index, kept, unknown=kept)
            else:
                continue
            if open_:
                open_[-1][1].append(node)
            else:
                yield node

    def _close(self, node: Node, parts: list[Node], event: Any) -> None:
        if isinstance(node, Sequence):
            node.items = parts
            in_brackets = self.text[node.end - 1 : node.end] == "[" and node.end > node.start
            node.end = event.end_mark.index if in_brackets else max([node.end, *_ends(parts)])
            return
        assert isinstance(node, Mapping)
        for key, value in zip(parts[::2], parts[1::2], strict=True):
            if not isinstance(key, Scalar) or key.kept or key.end == key.start:
                node.odd = "a key of it is not a plain word"
                continue
            name = key.value if isinstance(key.value, str) else self.text[key.start : key.end]
            if name == "<<":
                node.odd = "it takes over what is written elsewhere (<<)"
            if value.start == value.end and isinstance(value, Scalar):  # nothing is written there
                colon = self.text.find(":", key.end)
                value.start = value.end = colon + 1 if colon >= 0 else key.end
            node.pairs.append(Pair(name, Span(key.start, key.end), value, key.quote))
        node.end = event.end_mark.index if node.flow else max([node.start, *_ends(parts)])

    def _scalar(self, event: Any) -> Scalar:
        start, end = event.start_mark.index, event.end_mark.index
        written = self.text[start:end]
        quote = event.style or ""
        kept = _why_kept(event)
        if quote in {"|", ">"}:
            end = start + len(written.rstrip())
            kept = kept or "it is a text over several lines"
        elif "\n" in written or "\r" in written:
            kept = kept or "it goes over several lines"
        value = event.value
        masked = _MASK in value
        filled = TEMPLATE if masked or _FILLED_IN.search(value) is not None else ""
        if masked:
            value = written
        if event.tag and event.tag != "!":
            return Scalar(start, end, kept, value, quote, filled or kept)
        return Scalar(start, end, kept, value if quote or masked else _value(value), quote, filled)


def _value(word: str) -> Value:
    if word in _WORDS:
        return _WORDS[word]
    if _INTEGER.fullmatch(word) is not None:
        return int(word.replace("_", ""))
    if _FLOAT.fullmatch(word) is not None:
        return float(word.replace("_", ""))
    return word


def _why_kept(event: Any) -> str:
    if event.anchor is not None:
        return f"&{event.anchor} makes it count elsewhere too"
    if event.tag is not None and str(event.tag) != "!":
        return f"it has the tag {event.tag}"
    return ""


def _ends(parts: list[Node]) -> list[int]:
    return [part.end for part in parts]


def written(value: Value, quote: str = "") -> str:
    """A value as YAML; text in the quotes that stood there, or in such as it needs."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, tuple):
        return f"[{', '.join(written(each) for each in value)}]"
    plain = re.fullmatch(r"[A-Za-z_][\w./-]*(,[\w./-]+)*", value) is not None
    if quote == "'" or (not quote and not (plain and isinstance(_value(value), str))):
        return "'" + value.replace("'", "''") + "'"
    if quote == '"':
        import json

        return json.dumps(value, ensure_ascii=False)
    return value
