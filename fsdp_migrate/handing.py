"""Files that do nothing to a model but hand it on to those that do.

``train.py`` wraps a model and gives it to a function of ``engine.py``, which gives it to one of
``utils.py``, which saves it: only from the call in ``engine.py`` can it be told what is saved. Such
files are found by the names that they import, or call, of functions that do something to a model,
and in turn of those that call these: in their text, since most files are found to call none.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fsdp_migrate.neighbours import Neighbours

DEFINITION = re.compile(rb"^([ \t]*)(?:async[ \t]+)?(def|class)[ \t]+(\w+)", re.MULTILINE)
CALL = re.compile(rb"(\.?)\b(\w+)\(")
ARGUMENT = re.compile(rb"[ \t\r\n]*[,)]")
CALLEE = re.compile(rb"(\w+)$")
OPEN, CLOSED = b"()"
LONGEST_CALL, LONGEST_NAME = 1_000, 100
WORD = re.compile(rb"\w+")
MADE = re.compile(rb"\b(\w+)[ \t]*=[ \t]*(?:\w+\.)*(\w+)\(")
RENAMED = re.compile(rb"\b(\w+)[ \t]+as[ \t]+(\w+)")
DUNDER = re.compile(rb"__\w+__")

Called = frozenset[tuple[bool, bytes]]


@dataclass
class Handing:
    """The names by which a model gets to code that does something to it."""

    imports: Neighbours
    texts: Mapping[Path, bytes]
    common: frozenset[bytes]  # names of methods that tell nothing
    by_file: dict[Path, set[str]] = field(default_factory=lambda: defaultdict(set))
    methods: set[bytes] = field(default_factory=set)
    called_classes: set[bytes] = field(default_factory=set)  # those with a ``__call__``
    instances: set[bytes] = field(default_factory=set)
    seen: set[bytes] = field(default_factory=set)  # of both, what has been looked for
    defined: dict[Path, list[re.Match[bytes]]] = field(default_factory=dict)
    words: dict[Path, frozenset[bytes]] = field(default_factory=dict)
    given: set[bytes] = field(default_factory=set)  # functions that are given such an instance

    def find(
        self, taken: Collection[Path], rest: Collection[Path], later: Sequence[re.Pattern[bytes]]
    ) -> set[Path]:
        """The files of ``rest`` that hand models on to ``taken`` ones, where ``later`` is done."""
        for path in taken:
            data = self.texts[path]
            places = [match.start() for each in later for match in each.finditer(data)]
            self._learn(path, data, places)
        near = {path: self.texts[path] for path in (*taken, *rest)}
        called = {
            path: frozenset((bool(dot), name) for dot, name in CALL.findall(data))
            for path, data in near.items()
        }
        used: dict[Path, set[bytes]] = {path: set() for path in near}
        more = True
        while more:
            more = False
            self._learn_instances(near)
            for path, data in near.items():
                defined = frozenset(d[3] for d in self._definitions(path, data))
                names = self._names(path, called[path], defined) - used[path]
                if names:
                    more = True
                    used[path] |= names
                    uses = re.finditer(rb"\b(?:%s)\b" % b"|".join(sorted(names)), data)
                    self._learn(path, data, [match.start() for match in uses])
        return {path for path in rest if used[path]}

    def _names(self, path: Path, called: Called, defined: frozenset[bytes]) -> set[bytes]:
        """What a file imports, calls or defines that leads on to the code in question."""
        found: set[bytes] = set()
        for name, bound, targets in self.imports.bound_by(path):
            for target in targets:
                wanted = self.by_file.get(target, ())
                if name == "*":
                    found |= {w.encode() for w in wanted if (False, w.encode()) in called}
                elif name in wanted:
                    found.add((bound or name).encode())
        found |= {name for dotted, name in called if dotted and name in self.methods}
        found |= {name for _, name in called if name in self.instances}
        return found | (self.given & defined)

    def _learn(self, path: Path, data: bytes, places: Iterable[int]) -> None:
        """The functions and classes around some places of a file: who calls them, leads there."""
        definitions = self._definitions(path, data)
        starts = [definition.start() for definition in definitions]
        for place in places:
            inner = b""
            for indent, kind, name in _around(
                data, place, definitions[: bisect_right(starts, place)]
            ):
                if kind == b"class":
                    if inner == b"__call__":
                        self.called_classes.add(name)
                    elif inner and inner not in self.common and not DUNDER.fullmatch(inner):
                        self.methods.add(inner)
                if not indent:
                    self.by_file[path].add(name.decode())
                inner = name if kind == b"def" else b""

    def _definitions(self, path: Path, data: bytes) -> list[re.Match[bytes]]:
        if path not in self.defined:
            self.defined[path] = list(DEFINITION.finditer(data))
        return self.defined[path]

    def _learn_instances(self, texts: Mapping[Path, bytes]) -> None:
        """The names that callable objects are given, and the functions that are given them."""
        classes, instances = self.called_classes - self.seen, self.instances - self.seen
        if classes:
            for path, data in texts.items():
                if not classes.isdisjoint(self._words(path, data)):
                    renamed = {new for old, new in RENAMED.findall(data) if old in classes}
                    here = classes | renamed
                    instances.update(name for name, made in MADE.findall(data) if made in here)
            self.instances |= instances
        if instances:
            for path, data in texts.items():
                for name in instances & self._words(path, data):
                    self.given.update(_given(name, data))
        self.seen |= classes | instances

    def _words(self, path: Path, data: bytes) -> frozenset[bytes]:
        if path not in self.words:
            self.words[path] = frozenset(WORD.findall(data))
        return self.words[path]


def _given(name: bytes, data: bytes) -> Iterator[bytes]:
    """The functions that something of this name is an argument of."""
    place = data.find(name)
    while place >= 0:
        if ARGUMENT.match(data, place + len(name)):
            opened, begin = 0, place
            while begin > 0 and opened < 1 and place - begin < LONGEST_CALL:
                begin -= 1
                opened += {OPEN: 1, CLOSED: -1}.get(data[begin], 0)
            callee = CALLEE.search(data, max(0, begin - LONGEST_NAME), begin)
            if opened == 1 and callee is not None:
                yield callee[1]
        place = data.find(name, place + 1)


def _around(
    data: bytes, place: int, before: Sequence[re.Match[bytes]]
) -> Iterator[tuple[int, bytes, bytes]]:
    """Indent, kind and name of what a place stands in, from the inside out."""
    begin = data.rfind(b"\n", 0, place) + 1
    line = data[begin:place]
    limit = len(line) - len(line.lstrip())
    for match in reversed(before):
        indent = len(match[1])
        if indent < limit or match.start() == begin:
            yield indent, match[2], match[3]
            limit = indent
        if not limit:
            return
