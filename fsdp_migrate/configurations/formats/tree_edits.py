"""Edits of YAML and JSON: entries of mappings replaced, removed, added, marked.

Every edit is a span of the text, so that all else comes back as it was. What was made is read
again and compared with what it should be (``checked``).
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from fsdp_migrate.configurations.formats.text import Edit, Refused, Text, applied
from fsdp_migrate.configurations.formats.tree import Mapping, Node, Pair, Scalar, plain
from fsdp_migrate.configurations.formats.tree import Sequence as ListNode
from fsdp_migrate.configurations.settings import Value

New = Value | dict[str, Value]  # a value, or a block of them
Written = Callable[[Value, str], str]
COMMENT = "#"


@dataclass
class Changed:
    """What becomes of the entries of one mapping."""

    mapping: Mapping
    replaced: dict[int, tuple[str, Value]] = field(default_factory=dict)  # by number of the pair
    removed: set[int] = field(default_factory=set)
    added: dict[str, New] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)  # comments above what is added


def edits(text: Text, changed: Changed, written: Written) -> list[Edit]:
    """
    Raises:
        Refused: it cannot be done here.
    """
    mapping = changed.mapping
    if mapping.odd or mapping.kept:
        raise Refused(mapping.odd or mapping.kept)
    if changed.replaced or changed.removed:
        for number in (*changed.replaced, *changed.removed):
            kept = mapping.pairs[number].value.kept
            if kept and not (number in changed.removed and "several lines" in kept):
                raise Refused(f"{mapping.pairs[number].key}: {kept}")
    if len(changed.removed) == len(mapping.pairs) and not changed.added:
        raise Refused("nothing would be left of the block")
    found = [
        edit
        for number, (key, value) in changed.replaced.items()
        for edit in _replaced(text, mapping.pairs[number], key, value, written)
    ]
    lay_out = _in_braces if mapping.flow else _in_lines
    return [*found, *lay_out(text, changed, written)]


def _replaced(text: Text, pair: Pair, key: str, value: Value, written: Written) -> list[Edit]:
    found = []
    if key != pair.key:
        new = written(key, pair.quote) if pair.quote else key
        found.append(Edit(*pair.at, new))
    old = pair.value
    if isinstance(old, Mapping) or text.line_at(old.start) != text.line_at(old.end):
        raise Refused(f"{pair.key}: its value goes over several lines")
    if isinstance(old, Scalar) and (type(old.value), old.value) == (type(value), value):
        return found
    quote = old.quote if isinstance(old, Scalar) and isinstance(value, str) else ""
    new = written(value, quote)
    found.append(Edit(old.start, old.end, f" {new}" if old.start == old.end else new))
    return found


# -- blocks of lines ------------------------------------------------------------------------------


def _in_lines(text: Text, changed: Changed, written: Written) -> list[Edit]:
    mapping = changed.mapping
    gone: set[int] = set()
    for number in changed.removed:
        pair = mapping.pairs[number]
        if text.indent_at(pair.at.start) is None:
            raise Refused(f"{pair.key}: it does not begin its line")
        gone |= set(range(text.line_at(pair.at.start), text.line_at(pair.end - 1) + 1))
        gone |= set(_own_comments(text, mapping, number))
    runs = _runs(text, gone)
    found = [Edit(text.start_of(run[0]), text.end_of(run[-1]), "") for run in runs]
    if not changed.added:
        return found
    column = text.place(mapping.pairs[0].at.start)[1] - 1
    if text.line_at(mapping.pairs[0].at.start) == 1 and text.text.startswith("\ufeff"):
        column -= 1
    by_line: dict[int, list[str]] = {}  # behind which they come; 0 for the first of all
    for key, value in changed.added.items():
        notes = [f"{' ' * column}{line}" for line in changed.notes.get(key, ())]
        lines = [*notes, *_entry(key, value, " " * column, _step(text, mapping, column), written)]
        number = _after(mapping, key)
        last = text.line_at(mapping.pairs[number].end - 1) if number >= 0 else 0
        last = next((run[-1] for run in runs if run[0] <= last < run[-1]), last)
        by_line.setdefault(last, []).extend(lines)
    for last, lines in by_line.items():
        if not last:
            first = mapping.pairs[0].at.start
            if text.indent_at(first) is None:
                raise Refused("its first entry does not begin its line")
            at = text.start_of(text.line_at(first))
            found.append(Edit(at, at, "".join(f"{line}{text.newline}" for line in lines)))
            continue
        at = text.end_of(last)
        whole = text.newline.join(lines)
        if text.text[:at].endswith(("\n", "\r")):
            whole = f"{whole}{text.newline}"
        elif last not in gone:
            whole = f"{text.newline}{whole}"
        found.append(Edit(at, at, whole))
    return found


def _entry(key: str, value: New, indent: str, step: str, written: Written) -> list[str]:
    if not isinstance(value, dict):
        return [f"{indent}{key}: {written(value, '')}"]
    lines = [f"{indent}{step}{k}: {written(v, '')}" for k, v in value.items()]
    return [f"{indent}{key}:", *lines]


def _step(text: Text, mapping: Mapping, column: int) -> str:
    """How much deeper a block below one of the mapping's keys stands."""
    for pair in mapping.pairs:
        if isinstance(pair.value, Mapping) and not pair.value.flow and pair.value.pairs:
            deeper = text.place(pair.value.pairs[0].at.start)[1] - 1 - column
            if deeper > 0:
                return " " * deeper
    return "  "


def _after(mapping: Mapping, key: str) -> int:
    """The number of the pair that a new entry comes behind; -1 for none."""
    keys = [pair.key for pair in mapping.pairs]
    if len(keys) > 2 and keys == sorted(keys):
        return bisect(keys, key) - 1
    return len(keys) - 1


def _own_comments(text: Text, mapping: Mapping, number: int) -> list[int]:
    """The lines of comments above a pair that are about it alone."""
    pair = mapping.pairs[number]
    found = comments_above(text, pair.at.start)
    if not found:
        return []
    parts = {part for part in pair.key.lower().split("_") if len(part) > 3} - {"fsdp"}
    if any(part in text.line(line).lower() for line in found for part in parts):
        return found
    following = text.line_at(pair.end - 1) + 1
    if number + 1 == len(mapping.pairs) or following > text.count():
        return found
    after = text.line(following).strip()
    return found if not after or after.startswith(COMMENT) else []


def comments_above(text: Text, offset: int) -> list[int]:
    """The lines of comments right above what begins its line, in its own column."""
    indent = text.indent_at(offset)
    line = text.line_at(offset) - 1
    found: list[int] = []
    while indent is not None and line >= 1:
        above = text.line(line)
        if not above.startswith(f"{indent}{COMMENT}"):
            break
        found.insert(0, line)
        line -= 1
    return found


def _runs(text: Text, gone: set[int]) -> list[list[int]]:
    """Lines next to each other that go; of empty lines around them one stays."""
    lines = sorted(gone)
    runs = [
        [line for _, line in group]
        for _, group in groupby(enumerate(lines), key=lambda each: each[1] - each[0])
    ]
    for run in runs:
        above, below = run[0] - 1, run[-1] + 1
        empty = above >= 1 and not text.line(above).strip()
        if empty and below <= text.count() and not text.line(below).strip():
            run.append(below)
    return runs


# -- braces ---------------------------------------------------------------------------------------


def _in_braces(text: Text, changed: Changed, written: Written) -> list[Edit]:
    mapping = changed.mapping
    pairs = mapping.pairs
    kept = [n for n in range(len(pairs)) if n not in changed.removed]
    colon = '": ' if pairs and pairs[0].quote == '"' else ": "
    quote = '"' if colon[0] == '"' else ""
    new = []
    for key, value in changed.added.items():
        if isinstance(value, dict):
            inner = ", ".join(f"{quote}{k}{colon}{written(v, '')}" for k, v in value.items())
            new.append(f"{quote}{key}{colon}{{{inner}}}")
        else:
            new.append(f"{quote}{key}{colon}{written(value, '')}")
    if not pairs:
        raise Refused("there is nothing in it")
    if (changed.added or changed.removed) and _has_comment(text, mapping):
        raise Refused("there are comments in its braces")
    if not kept:
        return [Edit(pairs[0].at.start, pairs[-1].end, _between(text, mapping).join(new))]
    found = []
    last = kept[-1]
    for number in sorted(changed.removed):
        if number < last:
            found.append(Edit(pairs[number].at.start, pairs[number + 1].at.start, ""))
    if last + 1 < len(pairs):
        found.append(Edit(pairs[last].end, pairs[-1].end, ""))
    if new:
        between = _between(text, mapping)
        at = pairs[last].end
        if last + 1 < len(pairs):
            found.pop()
            found.append(Edit(at, pairs[-1].end, "".join(f"{between}{each}" for each in new)))
        else:
            found.append(Edit(at, at, "".join(f"{between}{each}" for each in new)))
    return found


def _between(text: Text, mapping: Mapping) -> str:
    """What stands between two entries."""
    first = mapping.pairs[0].at.start
    indent = text.indent_at(first)
    if indent is None:
        return ", "
    return f",{text.newline}{indent}"


def _has_comment(text: Text, mapping: Mapping) -> bool:
    ends = [mapping.start + 1]
    for pair in mapping.pairs:
        if COMMENT in text.text[ends[-1] : pair.at.start]:
            return True
        ends.append(pair.end)
    return COMMENT in text.text[ends[-1] : mapping.end]


# -- proof ----------------------------------------------------------------------------------------


def checked(
    text: Text,
    documents: Sequence[Node],
    changed: Sequence[Changed],
    made: Sequence[Edit],
    read: Callable[[str], Sequence[Node]],
) -> str:
    """The text with the edits, once it is shown to mean what it should.

    Raises:
        Refused: it does not.
    """
    new = applied(text.text, made)
    try:
        found = [plain(node) for node in read(new)]
    except Exception as error:
        raise Refused(f"the new text cannot be read: {error}") from None
    by_mapping = {id(each.mapping): each for each in changed}
    if found != [_expected(node, by_mapping) for node in documents]:
        raise Refused("it is written in a way that is not edited")
    return new


def _expected(node: Node, changed: dict[int, Changed]) -> object:
    if isinstance(node, ListNode):
        return tuple(_expected(item, changed) for item in node.items)
    if not isinstance(node, Mapping):
        return plain(node)
    own = changed.get(id(node), Changed(node))
    pairs: list[tuple[str, object]] = []
    for number, pair in enumerate(node.pairs):
        if number in own.replaced:
            key, value = own.replaced[number]
            pairs.append((key, _plain(value)))
        elif number not in own.removed:
            pairs.append((pair.key, _expected(pair.value, changed)))
    for key, new in own.added.items():
        if isinstance(new, dict):
            pairs.append((key, [*sorted((k, _plain(v)) for k, v in new.items())]))
        else:
            pairs.append((key, _plain(new)))
    return sorted(pairs, key=lambda pair: pair[0])


def _plain(value: Value) -> object:
    if isinstance(value, tuple):
        return tuple(_plain(each) for each in value)
    return (type(value).__name__, value)
