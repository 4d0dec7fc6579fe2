"""Which files of a project meet through imports, read off the text of import statements.

Values travel between files along imports: a model made in one file reaches the files it imports
(as an argument) and those that import it (as a result), and all that these import in turn. Names
are compared by their last parts, so a file may be taken for a neighbour that is none; never the
other way round, but for imports that are computed at run time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

STATEMENT = re.compile(
    rb"^[ \t]*(?:from[ \t]*([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|(?:[^\n\\]|\\\r?\n)*)"
    rb"|import[ \t]([^\n]*))",
    re.MULTILINE,
)
COMMENT = re.compile(r"#[^\n]*")

Parts = tuple[str, ...]


@dataclass
class Neighbours:
    """The imports between ``files``."""

    files: Mapping[Path, bytes]
    _named: dict[str, list[tuple[Parts, Path]]] = field(init=False)

    def __post_init__(self) -> None:
        self._named = defaultdict(list)
        for path in self.files:
            parts = (
                path.parent.parts if path.stem == "__init__" else (*path.parent.parts, path.stem)
            )
            self._named[parts[-1]].append((parts, path))

    def around(self, starts: Collection[Path]) -> tuple[set[Path], set[Path]]:
        """Files that import one of ``starts``, however indirectly; and all that those import."""
        imports = {path: set(self._imported(path)) for path in self.files}
        importers: dict[Path, set[Path]] = defaultdict(set)
        for path, targets in imports.items():
            for target in targets:
                importers[target].add(path)
        above = _closure(starts, importers)
        return above, _closure(above, imports)

    def _imported(self, path: Path) -> Iterator[Path]:
        for dotted in _mentioned(self.files[path], path):
            for parts, target in self._named.get(dotted[-1], ()):
                if parts[-len(dotted) :] == dotted:
                    yield target


def _mentioned(data: bytes, path: Path) -> set[Parts]:
    """Every module that the import statements of a file may mean; relative ones as whole paths."""
    found: set[Parts] = set()
    for source, names, modules in STATEMENT.findall(data):
        if modules:
            for dotted in _names(modules):
                parts = tuple(dotted.split("."))
                found |= {parts[:end] for end in range(1, len(parts) + 1)}
            continue
        text = source.decode(errors="replace")
        start = tuple(part for part in text.split(".") if part)
        level = len(text) - len(text.lstrip("."))
        if level:
            package = path.parents[level - 1] if level <= len(path.parents) else path.parent
            start = (*package.parts, *start)
        found |= {start, *((*start, name) for name in _names(names))}
    return found


def _names(listed: bytes) -> list[str]:
    """``b"(a as x, b)  # why"`` -> ``["a", "b"]``."""
    text = COMMENT.sub("", listed.decode(errors="replace")).replace("\\", " ")
    names = (piece.strip(" \t\r\n()").split(" ", 1)[0] for piece in text.split(","))
    return [name for name in names if name]


def _closure(starts: Iterable[Path], edges: Mapping[Path, Collection[Path]]) -> set[Path]:
    found = set(starts)
    stack = list(found)
    while stack:
        for target in edges.get(stack.pop(), ()):
            if target not in found:
                found.add(target)
                stack.append(target)
    return found
