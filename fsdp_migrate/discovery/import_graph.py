"""Which files of a project are joined by imports, read off the text of import statements.

A model that is made in one file reaches the files that it imports (as an argument), those that
import it (as a result), and all that these import in turn. Modules are compared by the last parts
of their names. So a file may be taken for a neighbour though it is none; a neighbour is missed only
where an import is computed at run time.

A package's ``__init__`` that re-exports names of its modules (a *hub*) would join everything with
everything. So a name that is imported from it leads on to the module that it is re-exported from,
and the ``__init__`` itself counts only if it is one of the files that were asked about.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from fsdp_migrate.analysis.installed_packages import lying
from fsdp_migrate.analysis.vendored import Vendored

# With a line break in front, which is looked for faster than the beginning of a line.
STATEMENT = re.compile(
    rb"\n[ \t]*(?:from[ \t]*([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|(?:[^\n\\]|\\\r?\n)*)"
    rb"|import[ \t]([^\n]*))"
)
MANY = 1_000  # files that are worth several processes
LETTERS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
HYDRA = b"hydra"
COMMENT = re.compile(r"#[^\n]*")

Parts = tuple[str, ...]


class _Import(NamedTuple):
    """One name: ``source`` as far as it is known, a whole path when the import is relative."""

    source: Parts
    name: str  # "" for a module as such, "*" for all
    bound: str


class _Text:
    """The text of a file, in which what is read of a module is looked for once."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._found: dict[str, list[str]] = {}

    def attributes(self, module: str) -> list[str]:
        """The names that are read as attributes of what is called ``module``, in order."""
        if module not in self._found:
            found: Sequence[bytes] = ()
            if module.encode() + b"." in self.data:  # as few of many; a pattern is dear to make
                found = sorted(set(_attributes_of(module).findall(self.data)))
            self._found[module] = [name.decode(errors="replace") for name in found]
        return self._found[module]


@dataclass
class Neighbours:
    """The imports between ``files``."""

    files: Mapping[Path, bytes]
    marks: tuple[bytes, ...] = ()
    jobs: int = 1
    top: Path | None = None  # the directory that holds them all
    marked: set[Path] = field(default_factory=set)  # the files that hold one of ``marks``
    by_hydra: set[Path] = field(default_factory=set)  # those that may have hydra call functions
    _named: dict[str, list[tuple[Parts, Path]]] = field(init=False)
    _imports: dict[Path, list[_Import]] = field(init=False)
    _known: dict[tuple[Parts, str], frozenset[Path]] = field(default_factory=dict)
    _hubs: dict[Path, dict[str, list[_Import]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._named = defaultdict(list)
        for path in self.files:
            parts = path.parent.parts if _is_hub(path) else (*path.parent.parts, path.stem)
            self._named[parts[-1]].append((parts, path))
        self._imports = {}
        paths = list(self.files)
        for path, (imports, marked, asks) in zip(paths, self._read_all(paths), strict=True):
            self._imports[path] = imports
            if marked:
                self.marked.add(path)
            if asks:
                self.by_hydra.add(path)

    def _read_all(self, paths: Sequence[Path]) -> Iterable[tuple[list[_Import], bool, bool]]:
        if self.jobs < 2 or len(paths) < MANY:
            return map(self._read, paths)
        from fsdp_migrate import workers

        answers = workers.each(self._read, paths, jobs=self.jobs, least=MANY)
        return (([], False, False) if isinstance(a, workers.Crash) else a for a in answers)

    def _read(self, path: Path) -> tuple[list[_Import], bool, bool]:
        data = self.files[path]
        marked = any(mark in data for mark in self.marks)
        # Functions import the same again and again: each name once.
        imports = dict.fromkeys(self._statements(path, _Text(data)))
        return list(imports), marked, HYDRA in data

    def joined_to(self, starts: Collection[Path]) -> tuple[set[Path], set[Path]]:
        """The files that import one of ``starts``, directly or not; and all that those import."""
        passing = {path for path in self.files if not _is_hub(path) or path in starts}
        above = _closure(starts, self._importers, passing)
        return above, _closure(above, self._imported, passing)

    @cached_property
    def _imported(self) -> dict[Path, set[Path]]:
        """The files that each file imports."""
        return {path: self._targets(path) for path in self.files}

    @cached_property
    def _importers(self) -> dict[Path, set[Path]]:
        """The files that import each file."""
        found: dict[Path, set[Path]] = defaultdict(set)
        for path, targets in self._imported.items():
            for target in targets:
                found[target].add(path)
        return found

    def imported_by(self, path: Path) -> Iterator[tuple[str, str, frozenset[Path]]]:
        """What a file imports: each name, its name there, and the files it may come from."""
        for each in self._imports[path]:
            yield each.name, each.bound, self._leading_to(each.source, each.name)

    def _statements(self, path: Path, text_of: _Text) -> Iterator[_Import]:
        """Every name that the import statements of a file bring in from the project."""
        for source, names, modules in STATEMENT.findall(b"\n" + text_of.data):
            if modules:
                for dotted, bound in _names(modules):
                    yield from self._modules(dotted, bound, text_of, path.parent)
                continue
            text = source.decode(errors="replace")
            start = tuple(part for part in text.split(".") if part)
            level = len(text) - len(text.lstrip("."))
            if level:
                package = path.parents[level - 1] if level <= len(path.parents) else path.parent
                start = (*package.parts, *start)
            else:
                lies = lying(start, path.parent)
                level, start = (0, start) if lies is None else (1, lies)
            for name, bound in _names(names):
                if level or start[-1] in self._named or name in self._named:
                    yield _Import(start, name, bound)
                if name in self._named:
                    yield from self._attributes(bound, (*start, name), text_of)

    def _modules(
        self, dotted: str, bound: str, text_of: _Text, directory: Path
    ) -> Iterator[_Import]:
        """``import a.b``, and the attributes of ``a`` and of ``a.b`` that the file reads."""
        parts = tuple(dotted.split("."))
        spelled = {bound: parts} if bound != dotted else {}
        spelled |= {".".join(parts[:end]): parts[:end] for end in range(1, len(parts) + 1)}
        for text, written in spelled.items():
            source = lying(written, directory) or written
            if source[-1] in self._named:
                yield _Import(source, "", bound)
                yield from self._attributes(text, source, text_of)

    def _attributes(self, text: str, source: Parts, text_of: _Text) -> Iterator[_Import]:
        """The names of ``source`` that a file reads as attributes of ``text``, and of those names
        theirs, where they may be modules: ``package.utils.report.show`` of ``import package``."""
        for name in text_of.attributes(text):
            yield _Import(source, name, "")
            if name in self._named:
                yield from self._attributes(f"{text}.{name}", (*source, name), text_of)

    def _targets(self, path: Path) -> set[Path]:
        found: set[Path] = set()
        foreign: dict[str, bool] = {}  # packages that no directory above leads to
        for each in self._imports[path]:
            leading = self._leading_to(each.source, each.name)
            package = each.source[0] if each.source else ""
            if package not in foreign:
                absolute = _is_absolute(each)
                foreign[package] = absolute and not self._vendored.leads_to(package, path.parent)
            if foreign[package]:
                found.update(t for t in leading if self._vendored.may_mean(t, package, path))
            else:
                found |= leading
        return found

    @cached_property
    def _vendored(self) -> Vendored:
        absolute = {
            path: {each.source[0] for each in imports if _is_absolute(each)}
            for path, imports in self._imports.items()
        }
        return Vendored(absolute, self.top or Path("/"))

    def _leading_to(self, dotted: Parts, name: str) -> frozenset[Path]:
        """The files that a name imported from ``dotted`` may come from."""
        known = self._known.get((dotted, name))
        if known is not None:
            return known
        self._known[dotted, name] = frozenset()  # names may be imported in circles
        sources = list(dict.fromkeys(self._files(dotted)))
        if not name:
            found = {source for source in sources if not _is_hub(source)}
        else:
            found = set() if name == "*" else set(self._files((*dotted, name)))
            for source in sources:
                origins = self._origins(source, name) if _is_hub(source) else set()
                found |= origins
                if not (origins or (_is_hub(source) and found)):
                    found.add(source)
        self._known[dotted, name] = frozenset(found)
        return self._known[dotted, name]

    def _origins(self, hub: Path, name: str) -> set[Path]:
        """The files that an ``__init__`` re-exports a name from."""
        found: set[Path] = set()
        if name == "*":
            for each in self._imports[hub]:
                found |= self._leading_to(each.source, each.name)
            return found
        bound = self._bound(hub)
        for each in bound.get(name, ()):
            if each.name:
                found |= self._leading_to(each.source, each.name)
        for each in bound.get("*", ()):
            for source in self._files(each.source):
                if source != hub and name.encode() in self.files[source]:
                    found |= self._leading_to(each.source, name)
        return found

    def _bound(self, hub: Path) -> Mapping[str, list[_Import]]:
        if hub not in self._hubs:
            self._hubs[hub] = defaultdict(list)
            for each in self._imports[hub]:
                self._hubs[hub][each.bound].append(each)
        return self._hubs[hub]

    def _files(self, dotted: Parts) -> Iterator[Path]:
        if dotted:
            for parts, path in self._named.get(dotted[-1], ()):
                if parts[-len(dotted) :] == dotted:
                    yield path


def words(word: bytes, data: bytes) -> Iterator[int]:
    """Where a word stands that is not part of a longer one."""
    place = data.find(word)
    while place >= 0:
        end = place + len(word)
        before, behind = place > 0, end < len(data)
        if not (before and data[place - 1] in LETTERS) and not (behind and data[end] in LETTERS):
            yield place
        place = data.find(word, end)


@cache
def _attributes_of(module: str) -> re.Pattern[bytes]:
    """``module.name``; the pattern begins with fixed text, which is found fast."""
    path = re.escape(module.encode()) + rb"\."
    return re.compile(rb"%s(?<!\w%s)(\w+)" % (path, path))


def _is_absolute(each: _Import) -> bool:
    return bool(each.source) and not os.path.isabs(each.source[0])


def _is_hub(path: Path) -> bool:
    return path.stem == "__init__"


def _names(listed: bytes) -> Iterator[tuple[str, str]]:
    """``b"(a as x, b)  # why"`` -> ``("a", "x"), ("b", "b")``."""
    text = COMMENT.sub("", listed.decode(errors="replace")).replace("\\", " ")
    for piece in text.split(","):
        words = piece.strip(" \t\r\n()").split()
        if words:
            yield words[0], words[-1]


def _closure(
    starts: Iterable[Path], edges: Mapping[Path, Collection[Path]], passing: Collection[Path]
) -> set[Path]:
    """All files that ``starts`` lead to. Files that are not in ``passing`` lead nowhere."""
    found = set(starts)
    stack = [path for path in found if path in passing]
    while stack:
        for target in edges.get(stack.pop(), ()):
            if target not in found:
                found.add(target)
                if target in passing:
                    stack.append(target)
    return found
