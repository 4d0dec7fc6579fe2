"""Files that do nothing to a model but pass it on to files that do.

Example: ``train.py`` wraps a model and passes it to a function of ``engine.py``, which passes it to
one of ``utils.py``, which saves it. Only the call in ``engine.py`` tells what is saved. Such files
are found by the names that they import or call: of functions that do something to a model, then of
the functions that call those, and so on. Only text is searched, since most files call none.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from fsdp_migrate.discovery.import_graph import Neighbours, words

# With a line break in front, which is looked for faster than the beginning of a line.
DEFINITION = re.compile(rb"\n([ \t]*)(?:async[ \t]+)?(def|class)[ \t]+(\w+)")
METHOD_CALL = re.compile(rb"\.(\w+)\(")
BARE_CALL = re.compile(rb"(?<!\.)\b(\w+)\(")
# What runs methods by names that it does not spell: ``getattr(callback, name)(self)``.
GETTER = b"getattr"
BY_TEXT = re.compile(rb"getattr\(([^()]*)\)(\(?)")
NAMED = re.compile(rb"(\w+)[ \t]*:?=[ \t]*\Z")
CALLED, ARGUMENT = rb"\(", rb"[ \t\r\n]*[,)]"
CALLEE = re.compile(rb"(\w+)$")
LONGEST_CALL, LONGEST_NAME = 1_000, 100
RENAMED = re.compile(rb"[ \t]+as[ \t]+(\w+)")
TARGET = re.compile(rb"(\w+)[ \t]*=[ \t]*(?:\w+\.)*\Z")
WORD = re.compile(rb"\w+")
MANY = 10  # names that are worth taking a text apart for
DUNDER = re.compile(rb"__\w+__")


class _Definition:
    """A ``def`` or ``class`` statement of a file."""

    __slots__ = ("begin", "indent", "is_class", "name", "noted", "outer")

    def __init__(self, match: re.Match[bytes]) -> None:
        self.begin = match.start()  # of its line
        self.indent = match.end(1) - match.start(1)
        self.is_class = match[2] == b"class"
        self.name = match[3]
        self.outer: _Definition | None = None
        self.noted = False


@dataclass(eq=False)
class _File:
    """The text of a file. What is read off it is read when it is first asked for."""

    path: Path
    data: bytes
    used: set[bytes] = field(default_factory=set)  # names that lead on to the code in question
    noted: int = 0  # definitions of which that is known

    @cached_property
    def definitions(self) -> list[_Definition]:
        found: list[_Definition] = []
        around: list[_Definition] = []
        for match in DEFINITION.finditer(b"\n" + self.data):
            definition = _Definition(match)
            while around and around[-1].indent >= definition.indent:
                around.pop()
            definition.outer = around[-1] if around else None
            around.append(definition)
            found.append(definition)
        return found

    @cached_property
    def begins(self) -> list[int]:
        return [definition.begin for definition in self.definitions]

    @cached_property
    def defined(self) -> frozenset[bytes]:
        return frozenset(definition.name for definition in self.definitions)

    @cached_property
    def methods(self) -> frozenset[bytes]:
        """The names that are called as attributes: ``model.save()``."""
        return frozenset(METHOD_CALL.findall(self.data))

    @cached_property
    def called_as_such(self) -> frozenset[bytes]:
        return frozenset(BARE_CALL.findall(self.data))

    @cached_property
    def calls_by_text(self) -> bool:
        for match in BY_TEXT.finditer(self.data):
            named = NAMED.search(self.data, max(0, match.start() - LONGEST_NAME), match.start())
            given, called = match.groups()
            variable = named[1] if named is not None else None
            if called or (variable in self.called_as_such and b'"' not in given):
                return True
        return False

    @cached_property
    def words(self) -> frozenset[bytes]:
        return frozenset(WORD.findall(self.data))

    def holding(self, names: Set[bytes]) -> Set[bytes]:
        """Those of some names that are in the text. Many are looked for all at once."""
        if len(names) < MANY:
            return {name for name in names if name in self.data}
        return self.words & names

    def enclosing(self, place: int) -> _Definition | None:
        """The innermost definition around a place, or the one whose first line it is in."""
        before = bisect_right(self.begins, place)
        definition = self.definitions[before - 1] if before else None
        begin = self.data.rfind(b"\n", 0, place) + 1
        if definition is None or definition.begin == begin:
            return definition
        line = self.data[begin:place]
        limit = len(line) - len(line.lstrip())
        while definition is not None and definition.indent >= limit:
            definition = definition.outer
        return definition


@dataclass
class CallerSearch:
    """Finds, round by round, the names by which a model gets to code that does something to it."""

    imports: Neighbours
    texts: Mapping[Path, bytes]
    common: frozenset[bytes]  # names of methods that tell nothing
    by_file: dict[Path, set[str]] = field(default_factory=lambda: defaultdict(set))
    methods: set[bytes] = field(default_factory=set)
    called_classes: set[bytes] = field(default_factory=set)  # those with a ``__call__``
    instances: set[bytes] = field(default_factory=set)
    seen: set[bytes] = field(default_factory=set)  # of both, what has been looked for
    receivers: set[bytes] = field(default_factory=set)  # functions that are passed such an instance

    def find(
        self, taken: Collection[Path], rest: Collection[Path], uses: Sequence[re.Pattern[bytes]]
    ) -> set[Path]:
        """The files of ``rest`` that pass models to the ``uses`` of models in ``taken`` files."""
        files = {path: _File(path, self.texts[path]) for path in (*taken, *rest)}
        for path in taken:
            file = files[path]
            for each in uses:
                self._note(file, (match.start() for match in each.finditer(file.data)))
        importers = self._importers(files)
        # What is known already has been looked for in every file: what is new is all that leads on.
        followed: dict[Path, set[str]] = defaultdict(set)
        known = _Names()
        more = True
        while more:
            self._note_instances(files.values())
            new = _Names(self.methods, self.instances, self.receivers).less(known)
            known = _Names(set(self.methods), set(self.instances), set(self.receivers))
            found = {file: _called(file, new) for file in files.values()} if new else {}
            for target, wanted in self.by_file.items():
                fresh = wanted - followed[target]
                followed[target] |= fresh
                for file, name, bound in importers.get(target, ()) if fresh else ():
                    if name == "*":
                        names = {w.encode() for w in fresh} & file.called_as_such
                    else:
                        names = {bound.encode()} if name in fresh else set()
                    found.setdefault(file, set()).update(names)
            more = False
            for file, names in found.items():
                unused = names - file.used
                file.used |= unused
                more |= bool(unused)
                for word in unused:
                    self._note(file, words(word, file.data))
        return {path for path in rest if files[path].used}

    def _importers(self, files: Mapping[Path, _File]) -> dict[Path, list[tuple[_File, str, str]]]:
        """By file, what others import from it: who does, the name, and what it is called there."""
        found: dict[Path, list[tuple[_File, str, str]]] = defaultdict(list)
        for path, file in files.items():
            for name, bound, targets in self.imports.imported_by(path):
                for target in targets if name else ():
                    if target in files:
                        found[target].append((file, name, bound or name))
        return found

    def _note(self, file: _File, places: Iterable[int]) -> None:
        """Note the functions and classes around some places: who calls them, leads there."""
        for place in places:
            if file.noted == len(file.definitions):
                return  # whatever is found next is known
            inner, definition = b"", file.enclosing(place)
            while definition is not None:
                if definition.is_class:
                    if inner == b"__call__":
                        self.called_classes.add(definition.name)
                    elif inner and inner not in self.common and not DUNDER.fullmatch(inner):
                        self.methods.add(inner)
                if definition.noted:
                    break  # and so is what is around it
                definition.noted = True
                file.noted += 1
                if not definition.indent:
                    self.by_file[file.path].add(definition.name.decode())
                inner = b"" if definition.is_class else definition.name
                definition = definition.outer

    def _note_instances(self, files: Collection[_File]) -> None:
        """Note the variables that hold callable objects, and the functions they are passed to."""
        classes, instances = self.called_classes - self.seen, self.instances - self.seen
        if classes:
            for file in files:
                instances.update(_variables_of(file.holding(classes), file.data))
            self.instances |= instances
        if instances:
            for file in files:
                for name in file.holding(instances):
                    self.receivers.update(_receivers(name, file.data))
        self.seen |= classes | instances


@dataclass(frozen=True)
class _Names:
    """Names that lead on wherever they are: called as methods, called at all, or defined."""

    methods: set[bytes] = field(default_factory=set)
    instances: set[bytes] = field(default_factory=set)
    receivers: set[bytes] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.methods or self.instances or self.receivers)

    def less(self, other: _Names) -> _Names:
        return _Names(
            self.methods - other.methods,
            self.instances - other.instances,
            self.receivers - other.receivers,
        )


def _called(file: _File, names: _Names) -> set[bytes]:
    """What a file calls or defines of some names."""
    found = names.methods & file.methods if names.methods else set()
    if names.methods and file.calls_by_text:
        found.add(GETTER)
    if names.instances:
        found |= {n for n in file.holding(names.instances) if _use(n, CALLED).search(file.data)}
    if names.receivers:
        found |= names.receivers & file.defined
    return found


def _variables_of(classes: Collection[bytes], data: bytes) -> Iterator[bytes]:
    """The variables that a file assigns instances of some classes to."""
    here = set(classes)
    for name in classes:
        renamed = (RENAMED.match(data, place + len(name)) for place in words(name, data))
        here.update(match[1] for match in renamed if match is not None)
    for name in here:
        for call in _use(name, CALLED).finditer(data):
            place = call.start()
            line = data.rfind(b"\n", 0, place) + 1
            target = TARGET.search(data, line, place)
            if target is not None:
                yield target[1]


@cache
def _use(name: bytes, behind: bytes) -> re.Pattern[bytes]:
    """A name as a word of its own, with something behind it. It begins with fixed text, which is
    found fast."""
    name = re.escape(name)
    return re.compile(rb"%s(?<!\w%s)%s" % (name, name, behind))


def _receivers(name: bytes, data: bytes) -> Iterator[bytes]:
    """The functions that a variable of this name is passed to."""
    for use in _use(name, ARGUMENT).finditer(data):
        place = use.start()
        lowest, begin, opened = max(0, place - LONGEST_CALL), place, 0
        while opened < 1:
            left = data.rfind(b"(", lowest, begin)
            right = data.rfind(b")", lowest, begin)
            if left < 0:
                break
            opened += 1 if left > right else -1
            begin = max(left, right)
        callee = CALLEE.search(data, max(0, begin - LONGEST_NAME), begin)
        if opened == 1 and callee is not None:
            yield callee[1]
