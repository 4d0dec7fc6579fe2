"""Settings among the words of a statement, and edits of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

from fsdp_migrate.configurations.block import Block, said
from fsdp_migrate.configurations.formats import cells, shell
from fsdp_migrate.configurations.formats.shell import Kind, Script, Statement, Word
from fsdp_migrate.configurations.formats.text import Edit, Refused, Span, Text, applied, marker
from fsdp_migrate.configurations.formats.tree_edits import comments_above
from fsdp_migrate.configurations.recognise import TRANSFORMERS
from fsdp_migrate.configurations.settings import Change, Setting, Value
from fsdp_migrate.configurations.variables import variable_of
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.syntax import suppressions

CONFIG = "fsdp_config"
BESIDE = frozenset({"bf16", "fp16"})  # flags of the program that are read, and never changed
FLAGS_OF_OLD = ("fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params")


@dataclass(frozen=True)
class Place:
    """Where a setting stands: the numbers of its words, the one with its name, and the value's."""

    first: int
    last: int
    word: Word
    value: Word | None  # a word of its own
    spelled: str  # the name as it is written
    equals: str  # "=" where the value stands behind it
    is_variable: bool = False


@dataclass(eq=False)
class Words(Block):
    """Settings among the words of a command or of a statement that sets variables."""

    statement: Statement = field(default_factory=lambda: Statement(Kind.COMMAND, Span(0, 0)))
    known: Counter[tuple[str, ...]] = field(default_factory=Counter)  # all statements of the file
    is_overridden: ClassVar[bool] = False
    marks_settings: ClassVar[bool] = False
    begin: int = 0
    end: int = 0
    base: tuple[str, str] | None = None  # the file that is read before; why it is not known
    beside: list[Words] = field(default_factory=list)  # the same run's other variables
    is_base: bool = False  # read beside others, and never alone
    is_sure: bool = True  # else it is what it seems if the file that it names is
    names: set[str] = field(default_factory=set)
    places: dict[str, Place] = field(default_factory=dict)
    inline: dict[str, Value] = field(default_factory=dict)  # fsdp_config, as JSON in the command
    inline_place: Place | None = None

    def take(self, setting: Setting, place: Place) -> None:
        if setting.name in self.settings:
            self.reason = f"{place.spelled} stands there twice"
        self.settings[setting.name] = setting
        self.places[setting.name] = place
        self.spans[setting.name] = Span(place.word.start, (place.value or place.word).end)

    def forget(self, name: str) -> None:
        del self.settings[name], self.spans[name], self.places[name]

    def take_inline(self, values: dict[str, Value]) -> None:
        """The keys of an ``fsdp_config`` that is written out in the command."""
        self.inline, self.inline_place = values, self.places[CONFIG]
        span = self.spans[CONFIG]
        self.forget(CONFIG)
        for name, value in values.items():
            self.settings[name] = Setting(name, value)
            self.spans[name] = span

    # -- edits ------------------------------------------------------------------------------------

    def edit(self, changes: Sequence[Change], width: int) -> list[Edit]:
        made: list[Edit] = []
        removed: set[int] = set()
        added: list[tuple[str, Value]] = []
        meant: dict[int, list[str]] = {}  # words that come in the place of others
        inline = dict(self.inline)
        for change in changes:
            if change.old in self.inline or (self.code == TRANSFORMERS and not change.old):
                inline = _with(inline, change)
                continue
            if not change.old:
                assert change.new is not None
                added.append(change.new)
                continue
            place = self.places[change.old]
            if change.new is None:
                removed |= set(range(place.first, place.last + 1))
            elif change.new != (change.old, self.settings[change.old].value):
                made += self._replaced(change.old, place, change.new, meant)
        if inline != self.inline:
            removed |= self._take_in(inline)
            text = json.dumps(inline, ensure_ascii=False)
            if self.inline_place is None:
                added.append((CONFIG, text))
            else:
                made += self._replaced(CONFIG, self.inline_place, (CONFIG, text), meant)
        made += self._moved(removed, added)
        self._prove(made, removed, added, meant)
        told = said(change for change in changes if change.outcome is Outcome.REVIEW)
        return [*made, *(self.mark("", told, width) if told else ())]

    def _take_in(self, inline: dict[str, Value]) -> set[int]:
        """Put in the JSON what releases that read ``version`` have no flags for; the words of
        those flags."""
        gone: set[int] = set()
        for name in FLAGS_OF_OLD:
            place, setting = self.places.get(name), self.settings.get(name)
            if place is not None and setting is not None and not setting.unknown:
                inline[name] = setting.value
                gone |= set(range(place.first, place.last + 1))
        return gone

    def _replaced(
        self, old: str, place: Place, new: tuple[str, Value], meant: dict[int, list[str]]
    ) -> list[Edit]:
        name, value = new
        if (self.code, name, value) == (TRANSFORMERS, "fsdp", True):
            return self._alone(place, meant)
        spelled = place.spelled if name == old else self._spelled(name, place)
        word = place.word
        flag = spelled if place.is_variable or "." in spelled else f"--{spelled}"
        text = _shown(value, place)
        if place.value is not None:
            meant |= {place.first: [flag], place.last: [text]}
            found = [Edit(*place.value.span, shell.written(text, place.value.quote))]
            return found if spelled == place.spelled else [*found, Edit(*word.span, flag)]
        if place.equals:
            meant[place.first] = [f"{flag}={text}"]
            return [Edit(*word.span, f"{flag}={shell.written(text, word.quote)}")]
        meant[place.first] = [flag, text]
        return [Edit(*word.span, f"{flag} {shell.written(text)}")]

    def _alone(self, place: Place, meant: dict[int, list[str]]) -> list[Edit]:
        """transformers' ``--fsdp`` is on without a value, and stops at ``true``; what follows must
        not be taken for one."""
        following = self.statement.words[place.last + 1 : place.last + 2]
        comes = not self.inline and self.base is None and place.last == self._last()
        if following and not comes and not following[0].value.startswith("-"):
            raise Refused(f"{following[0].value} would be taken for the value of --fsdp: move it")
        if place.value is not None:
            meant[place.last] = []
            return [Edit(place.word.end, place.value.end, "")]
        meant[place.first] = [f"--{place.spelled}"]
        return [Edit(*place.word.span, f"--{place.spelled}")]

    def _spelled(self, name: str, like: Place | None) -> str:
        if self._is_of_variables():
            return variable_of(name)
        hyphens = like is not None and "-" in like.spelled and "_" not in like.spelled
        return name.replace("_", "-") if hyphens else name

    def _is_of_variables(self) -> bool:
        return any(place.is_variable for place in self.places.values())

    def _moved(self, removed: set[int], added: Sequence[tuple[str, Value]]) -> list[Edit]:
        """Words that go, and such as come behind the last of those that stay."""
        if not removed and not added:
            return []
        words = self.statement.words
        text = self.file.text
        last_own = self._last()
        if self.statement.kind is Kind.VARIABLES:
            return self._lines_moved(removed, added)
        anchors = [n for n in range(last_own + 1) if n not in removed]
        if self._is_of_variables() and not [n for n in anchors if n < self.end] and added:
            raise Refused("there is no place for another variable")
        found = []
        for first, last in _runs(removed):
            if last + 1 < len(words):
                found.append(Edit(words[first].start, words[last + 1].start, ""))
            elif first:
                found.append(Edit(words[first - 1].end, words[last].end, ""))
            else:
                raise Refused("nothing would be left of it")
        if added:
            if not anchors:
                raise Refused("there is no place for another word")
            first_own = min(place.first for place in self.places.values())
            begins = not first_own and self.statement.kind is Kind.COMMAND
            indent = None if begins else text.indent_at(words[first_own].start)
            end = "" if self.statement.kind is Kind.ARRAY else " \\"
            between = " " if indent is None else f"{end}{text.newline}{indent}"
            at = words[anchors[-1]].end
            new = "".join(f"{between}{self._new_word(name, value)}" for name, value in added)
            found.append(Edit(at, at, new))
        return found

    def _last(self) -> int:
        """The number of the last word of the settings, behind which new ones come."""
        return max(place.last for name, place in self.places.items() if name not in BESIDE)

    def _new_word(self, name: str, value: Value) -> str:
        found = []
        for word in self._new_words(name, value):
            head, equals, tail = word.partition("=")
            found.append(f"{head}={shell.written(tail)}" if equals else shell.written(word))
        return " ".join(found)

    def _lines_moved(self, removed: set[int], added: Sequence[tuple[str, Value]]) -> list[Edit]:
        words = self.statement.words
        text = self.file.text
        first, last = map(text.line_at, (self.statement.span.start, self.statement.span.end - 1))
        indent = text.indent_at(self.statement.span.start)
        prefix = self.statement.prefix
        whole = len(removed) == len(words)
        found = []
        if (whole or added) and (indent is None or not self._is_alone(last)):
            raise Refused("other statements stand in its line")
        if whole:
            found.append(Edit(text.start_of(first), text.end_of(last), ""))
        else:
            for begin, end in _runs(removed):
                if end + 1 < len(words):
                    found.append(Edit(words[begin].start, words[end + 1].start, ""))
                else:
                    found.append(Edit(words[begin - 1].end, words[end].end, ""))
        lines = [f"{indent}{prefix}{self._new_word(name, value)}" for name, value in added]
        if lines:
            at = text.end_of(last)
            new = text.newline.join(lines)
            ends = text.text[:at].endswith(("\n", "\r"))
            found.append(Edit(at, at, f"{new}{text.newline}" if ends else f"{text.newline}{new}"))
        return found

    def _is_alone(self, line: int) -> bool:
        """Whether nothing but a comment stands behind the statement in its last line."""
        text = self.file.text
        rest = text.text[self.statement.span.end : text.end_of(line)].strip()
        return not rest or rest.startswith("#")

    def _prove(
        self,
        made: Sequence[Edit],
        removed: set[int],
        added: Sequence[tuple[str, Value]],
        meant: dict[int, list[str]],
    ) -> None:
        """Show that the edits make the words that they should, and change no others.

        Raises:
            Refused: they do not.
        """
        if self.file.path.suffix == cells.SUFFIX and any("{" in edit.text for edit in made):
            raise Refused(BRACES)
        before = self.known.copy()
        new = Text(applied(self.file.text.text, made))
        after = counted(shell.read(new, self.file.path))
        before[_plain(self.statement)] -= 1
        words: list[str] = []
        beside = self.statement.kind is Kind.VARIABLES
        last = self._last()
        anchor = max([n for n in range(last + 1) if n not in removed], default=-1)
        for number, word in enumerate(self.statement.words):
            if number not in removed:
                words += meant.get(number, [word.value])
            if number == anchor and not beside:
                words += [each for name, value in added for each in self._new_words(name, value)]
        expected = [tuple(words)] if words else []
        if beside:
            expected += [tuple(self._new_words(name, value)) for name, value in added]
        if +after != +(before + Counter(expected)):
            raise Refused("it is written in a way that is not edited")

    def _new_words(self, name: str, value: Value) -> list[str]:
        like = next(iter(self.places.values()))
        spelled, text = self._spelled(name, like), _shown(value, like)
        if like.is_variable or "." in name:
            return [f"{spelled}={text}"]
        if name.startswith("use_"):
            return [f"--{spelled}"]
        return [f"--{spelled}={text}"] if like.equals else [f"--{spelled}", text]

    def mark(self, name: str, sentence: str, width: int) -> list[Edit]:
        text = self.file.text
        line = text.line_at(self.statement.span.start)
        while line > 1 and text.line(line - 1).rstrip().endswith("\\"):
            line -= 1
        shown = text.line(line)
        indent = shown[: len(shown) - len(shown.lstrip())]
        if self.file.path.name.lower().endswith((".mk", "makefile")):
            indent = ""
        own = comments_above(text, text.start_of(line) + len(indent))
        if any(f"{suppressions.MARKER} {self.code})" in text.line(each) for each in own):
            return []
        at = text.start_of(own[0] if own else line)
        if text.line(own[0] if own else line).startswith("#!"):
            at = text.start_of(line)
        lines = marker(self.code, sentence, width - len(indent))
        made = Edit(at, at, "".join(f"{indent}{each}{text.newline}" for each in lines))
        return [made] if self._is_comment(made, len(lines)) else []

    def _is_comment(self, made: Edit, lines: int) -> bool:
        """Whether a marker would be a comment, and not part of a text over several lines."""
        path = self.file.path
        before = shell.read(self.file.text, path)
        after = shell.read(Text(applied(self.file.text.text, [made])), path)
        told = not shell.has_comments(path) or len(after.comments) == len(before.comments) + lines
        return told and counted(after) == counted(before)


BRACES = "IPython reads braces in a command itself: put it into a cell that begins with %%bash"


def _with(values: dict[str, Value], change: Change) -> dict[str, Value]:
    """The values of a block after a change of one of them, which keeps its place."""
    if not change.old:
        assert change.new is not None
        return {**values, change.new[0]: change.new[1]}
    pairs = [
        change.new if name == change.old else (name, value)
        for name, value in values.items()
        if name != change.old or change.new is not None
    ]
    return dict(pair for pair in pairs if pair is not None)


def counted(script: Script) -> Counter[tuple[str, ...]]:
    """The statements of a file by their words, to compare two texts by."""
    return Counter(map(_plain, script.statements))


def _plain(statement: Statement) -> tuple[str, ...]:
    return tuple(word.value for word in statement.words)


def _runs(numbers: set[int]) -> list[tuple[int, int]]:
    """Numbers next to each other."""
    ordered = sorted(numbers)
    if not ordered:
        return []
    breaks = [n for n, (a, b) in enumerate(pairwise(ordered), 1) if b != a + 1]
    starts, ends = [0, *breaks], [*breaks, len(ordered)]
    return [(ordered[a], ordered[b - 1]) for a, b in zip(starts, ends, strict=True)]


def _shown(value: Value, like: Place) -> str:
    if isinstance(value, bool):
        capital = like.word.value.endswith(("True", "False")) or (
            like.value is not None and like.value.value in {"True", "False"}
        )
        return str(value) if capital else str(value).lower()
    return "" if value is None else str(value)
