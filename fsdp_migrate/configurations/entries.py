"""Blocks of YAML and JSON files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from fsdp_migrate.configurations.block import Block, said
from fsdp_migrate.configurations.formats import tree_edits
from fsdp_migrate.configurations.formats.text import Edit, Refused, Span, marker
from fsdp_migrate.configurations.formats.tree import Mapping, Node, Pair, value_of
from fsdp_migrate.configurations.formats.tree_edits import Changed, Written
from fsdp_migrate.configurations.settings import Change, Setting
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.prose import sentences
from fsdp_migrate.syntax import suppressions


@dataclass(eq=False)
class Entries(Block):
    """Settings in mappings: those of ``top``, and those of blocks below some of its keys."""

    documents: Sequence[Node] = ()
    top: Mapping = field(default_factory=lambda: Mapping(0, 0))
    written: Written = lambda value, quote: str(value)
    read: Callable[[str], Sequence[Node]] = lambda text: ()
    comments: bool = True  # whether the format has any
    sections: tuple[str, ...] = ()  # keys of ``top`` that blocks stand below
    section_of: Callable[[str], str] = lambda name: ""  # where a new setting goes; "": in ``top``
    key_of: Callable[[str], str] = lambda name: name  # how a name is spelled in its mapping
    homes: dict[str, Mapping] = field(default_factory=dict)  # mappings by the path to them
    _places: dict[str, tuple[Mapping, int]] = field(default_factory=dict)

    def take(
        self, mapping: Mapping, name_of: Callable[[str], str], pairs_of: Collection[str] = ()
    ) -> None:
        """The scalars and lists of a mapping as settings: all, or those of some keys."""
        for number, pair in enumerate(mapping.pairs):
            if isinstance(pair.value, Mapping) or (pairs_of and pair.key not in pairs_of):
                continue
            name = name_of(pair.key)
            before, first = self._places.get(name, (None, 0))
            if before is mapping and before.pairs[first].key != pair.key:
                self.reason = f"{before.pairs[first].key} and {pair.key} are one setting: keep one"
            value, unknown = value_of(pair.value)
            self.settings[name] = Setting(name, value, unknown)
            self.spans[name] = Span(pair.at.start, pair.value.end)
            self._places[name] = (mapping, number)

    def edit(self, changes: Sequence[Change], width: int) -> list[Edit]:
        changed = self.changed(changes, width)
        made = [
            edit
            for each in changed
            for edit in tree_edits.edits(self.file.text, each, self.written)
        ]
        tree_edits.checked(self.file.text, self.documents, changed, made, self.read)
        marked = [c for c in changes if c.outcome is Outcome.REVIEW and self._is_beside(c)]
        for name in dict.fromkeys(change.old for change in marked):
            marks = self.mark(name, said(c for c in marked if c.old == name), width)
            made += [_before_what_goes(mark, made) for mark in marks]
        return made

    def _is_beside(self, change: Change) -> bool:
        """Whether the marker of a change stands at the old setting, or at the block."""
        mapping = self._mapping_for(self.section_of(change.new[0])) if change.new else None
        return bool(change.old) or (mapping or self.top).flow

    def changed(self, changes: Sequence[Change], width: int) -> list[Changed]:
        """What becomes of each mapping.

        Raises:
            Refused: there is no place for a setting.
        """
        found: dict[int, Changed] = {}

        def of(mapping: Mapping) -> Changed:
            return found.setdefault(id(mapping), Changed(mapping))

        for change in changes:
            if change.old:
                mapping, number = self._places[change.old]
                if change.new is None:
                    of(mapping).removed.add(number)
                    continue
                name, value = change.new
                pair = mapping.pairs[number]
                if (name, value) == (change.old, self.settings[change.old].value):
                    continue  # it stays, and is marked
                key = pair.key if name == change.old else self.key_of(name)
                if key != pair.key and mapping.get(key) is not None:
                    raise Refused(f"{key} stands there already")
                of(mapping).replaced[number] = (key, value)
                continue
            self._add(change, of, width)
        # What is added to an inner mapping comes before what is added behind it.
        return sorted(found.values(), key=lambda each: -each.mapping.start)

    def _add(self, change: Change, of: Callable[[Mapping], Changed], width: int) -> None:
        assert change.new is not None
        name, value = change.new
        section = self.section_of(name)
        mapping = self._mapping_for(section)
        key = self.key_of(name)
        sentence = sentences(change.message, change.help)
        if mapping is not None:
            if mapping.get(key) is not None:
                raise Refused(f"{key} stands there already")
            of(mapping).added[key] = value
            noted = key
        else:
            if self.homes or self.top.get(section) is not None:
                raise Refused(f"{section} is written in a way that is not edited")
            block = of(self.top).added.setdefault(section, {})
            assert isinstance(block, dict)
            block[key] = value
            mapping, noted = self.top, section
        if change.outcome is Outcome.REVIEW and self.comments and not mapping.flow:
            notes = of(mapping).notes
            indent = self.file.text.indent_at(mapping.pairs[0].at.start) if mapping.pairs else ""
            lines = marker(self.code, sentence, width - len(indent or ""))
            notes[noted] = [*notes.get(noted, ()), *(x for x in lines if noted not in notes)]

    def _mapping_for(self, section: str) -> Mapping | None:
        if self.homes:
            return self.homes.get(section)
        return self.top.below(section) if section else self.top

    def mark(self, name: str, sentence: str, width: int) -> list[Edit]:
        if not self.comments:
            return []
        text = self.file.text
        at = self._line_begin(self.span(name).start)
        indent = text.indent_at(at) if at is not None else None
        if at is None or indent is None:
            return []
        own = tree_edits.comments_above(text, at)
        if any(f"{suppressions.MARKER} {self.code})" in text.line(line) for line in own):
            return []
        first = text.start_of(own[0] if own else text.line_at(at))
        if first == 0 and text.text.startswith("\ufeff"):
            first, indent = 1, indent.lstrip("\ufeff")
        lines = marker(self.code, sentence, width - len(indent))
        return [Edit(first, first, "".join(f"{indent}{line}{text.newline}" for line in lines))]

    def _line_begin(self, offset: int) -> int | None:
        """The start of what begins a line and holds what stands at an offset."""
        text = self.file.text
        if text.indent_at(offset) is not None and not self._is_in_braces(offset):
            return offset
        around: list[Pair] = []
        for document in self.documents:
            _pairs_around(document, offset, around)
        for pair in reversed(around):
            start = pair.at.start
            if text.indent_at(start) is not None and not self._is_in_braces(start):
                return start
        return None

    def _is_in_braces(self, offset: int) -> bool:
        return any(_in_braces(document, offset) for document in self.documents)


def _before_what_goes(mark: Edit, made: Sequence[Edit]) -> Edit:
    """A marker at a line that goes together with lines above it stands before all of them."""
    for edit in made:
        if edit.start < mark.start < edit.end:
            return Edit(edit.start, edit.start, mark.text)
    return mark


def _pairs_around(node: Node, offset: int, found: list[Pair]) -> None:
    if isinstance(node, Mapping):
        for pair in node.pairs:
            if pair.at.start <= offset < pair.end:
                found.append(pair)
                _pairs_around(pair.value, offset, found)
    else:
        for item in getattr(node, "items", ()):
            if item.start <= offset <= item.end:
                _pairs_around(item, offset, found)


def _in_braces(node: Node, offset: int) -> bool:
    """Whether a comment above what stands at an offset would be inside of braces or brackets."""
    if isinstance(node, Mapping):
        if node.flow and node.start < offset < node.end:
            return True
        return any(
            _in_braces(p.value, offset) for p in node.pairs if p.value.start <= offset < p.value.end
        )
    items = getattr(node, "items", ())
    return any(_in_braces(item, offset) for item in items if item.start <= offset < item.end)
