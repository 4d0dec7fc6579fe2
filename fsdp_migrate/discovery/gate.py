"""Which files are looked at, and how closely.

Gates, each dearer than the one before: the walk (``.gitignore``, virtual environments, links), a
search of the bytes for FSDP's words, and, in a project that reaches FSDP1 at all, a search of the
other files for what code does to a model. Most files of most trees end at the second; only what is
left is ever parsed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fsdp_migrate.discovery import ignore_patterns, project_paths
from fsdp_migrate.discovery.walk import NOTEBOOK, Walk
from fsdp_migrate.syntax import spelled

# Every spelling by which FSDP1 is reached: the package, the class and its usual alias.
WORDS = (b"fsdp", b"FSDP", b"FullySharded")
COMMENT = b"fsdp-migrate"  # a comment of ours
MANY = 5_000  # files that are worth several processes


@dataclass
class Found:
    """The files of a run: ``candidates`` mention FSDP, ``others`` may meet an FSDP model."""

    root: Path
    trees: tuple[Path, ...] = ()  # real directories: nothing outside of them is written
    candidates: dict[Path, bytes] = field(default_factory=dict)
    others: dict[Path, bytes] = field(default_factory=dict)
    library: list[str] = field(default_factory=list)  # paths of everything else, unparsed
    unread: list[tuple[Path, str]] = field(default_factory=list)
    commented: dict[Path, bytes] = field(default_factory=dict)  # with comments of ours, perhaps
    seen: int = 0

    @cached_property
    def _here(self) -> Path:
        return Path.cwd()

    def display(self, path: Path) -> str:
        """How messages name a file: relative to the working directory when it lies there."""
        try:
            return path.relative_to(self._here).as_posix()
        except ValueError:
            return path.as_posix()


def mentioning(
    paths: Sequence[Path], exclude: Sequence[str] = (), base: Path | None = None, *, jobs: int = 1
) -> tuple[Found, list[str]]:
    """Read every Python file under ``paths`` that mentions FSDP; the other files' paths.

    Files that are named themselves are always taken. In directories, what git ignores or
    ``exclude`` matches (patterns relative to ``base``) is left out; links to files in the same
    directory count as those files; links to directories are not followed. A path that a link leads
    out of its project is not read.

    Raises:
        PathProblem: a path does not exist, or nothing under the paths is Python.
    """
    absolute, refused = project_paths.given(paths)
    parents = [p if p.is_dir() else p.parent for p in absolute]
    root = Path(os.path.commonpath(parents)) if parents else Path.cwd()
    found = Found(root, tuple(dict.fromkeys(map(project_paths.tree, absolute))), unread=refused)
    walk = Walk(ignore_patterns.excluding(exclude), str(base or found.root), found.unread)
    for path in absolute:
        walk.add(path)
    files = walk.files()
    found.seen = len(files)
    if absolute and not files and not found.unread:
        listed = ", ".join(str(path) for path in paths)
        raise project_paths.PathProblem(f"{listed}: no Python files here that git does not ignore")
    rest = _read(files, found, jobs)
    return found, rest


# -- the bytes ------------------------------------------------------------------------------------


def _read(files: Sequence[str], found: Found, jobs: int) -> list[str]:
    """Fill ``found.candidates``; return the files that do not mention FSDP."""
    rest = []
    for file, answer in zip(files, _each(_look, files, jobs), strict=True):
        if answer is None:
            rest.append(file)
        elif isinstance(answer, bytes):
            found.candidates[Path(file)] = answer
            if COMMENT in answer:
                found.commented[Path(file)] = answer
        else:
            found.unread.append((Path(file), answer))
    return rest


def _look(file: str) -> bytes | str | None:
    """The contents of a file that mentions FSDP, None of another, or why it cannot be read."""
    one, two, three = WORDS
    try:
        with open(file, "rb", buffering=0) as stream:
            data = stream.read()
    except OSError as error:
        return error.strerror or str(error)
    if one in data or two in data or three in data:
        return data
    text = spelled.unescaped(data) if file.endswith(NOTEBOOK) and b"\\u" in data else data
    try:
        text = spelled.names(text)
    except ValueError as error:
        return str(error)
    return data if one in text or two in text or three in text else None


def _each(
    function: Callable[[str], bytes | str | None], files: Sequence[str], jobs: int
) -> Iterable[bytes | str | None]:
    if jobs < 2 or len(files) < MANY:
        return map(function, files)
    from fsdp_migrate import workers

    answers = workers.each(function, files, jobs=jobs, least=MANY)
    return ("a process ended" if isinstance(a, workers.Crash) else a for a in answers)
