"""Which files are looked at, and how closely.

Three gates, each a hundred times dearer than the one before: the walk (``.gitignore``, virtual
environments, links out of the tree), a search of the bytes for FSDP's words, and ``ast``. Most
files of most trees end at the second.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pathspec import GitIgnoreSpec

SUFFIXES = (".py", ".pyi")
SKIPPED = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        ".tox",
        ".nox",
        ".venv",
        "venv",
        "node_modules",
        "__pycache__",
        "site-packages",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".fsdp-migrate",
    }
)
# Every spelling by which FSDP1 is reached: the package, the class and its usual alias.
WORDS = (b"fsdp", b"FSDP", b"FullySharded")
# What code does to a model it was given: such files matter once the project wraps one.
LATER_LIFE = (
    b"clip_grad_norm_",
    b".no_sync",
    b"state_dict(",
    b".parameters()",
    b"save_pretrained",
    b".module",
)


class PathProblem(Exception):
    """A given path cannot be used. The message names it."""


@dataclass
class Found:
    """The files of a run: ``candidates`` mention FSDP, ``others`` may meet an FSDP model."""

    root: Path
    candidates: dict[Path, bytes] = field(default_factory=dict)
    others: dict[Path, bytes] = field(default_factory=dict)
    library: list[Path] = field(default_factory=list)  # everything else, unparsed
    unread: list[tuple[Path, str]] = field(default_factory=list)
    seen: int = 0

    def display(self, path: Path) -> str:
        """How messages name a file: relative to the working directory when it lies there."""
        try:
            return path.relative_to(Path.cwd()).as_posix()
        except ValueError:
            return path.as_posix()


def find(paths: Sequence[Path], exclude: Sequence[str] = ()) -> Found:
    """Read every Python file under ``paths`` that could matter.

    Raises:
        PathProblem: a path does not exist or is neither a file nor a directory.
    """
    absolute = [_checked(path) for path in paths]
    parents = [p if p.is_dir() else p.parent for p in absolute]
    found = Found(Path(os.path.commonpath(parents)) if parents else Path.cwd())
    excluded = GitIgnoreSpec.from_lines(exclude)
    done: set[Path] = set()
    for path in absolute:
        files = [path] if path.is_file() else _walk(path, excluded)
        for file in files:
            if file not in done:
                done.add(file)
                _take(file, found, explicit=path.is_file())
    if found.candidates:
        _add_users(found)
    else:
        found.others.clear()
    return found


def _add_users(found: Found) -> None:
    """Also take files that name a module of the candidates: they may call its functions."""
    stems = {p.parent.name if p.stem == "__init__" else p.stem for p in found.candidates}
    words = [stem.encode() for stem in stems]
    library = []
    for file in found.library:
        try:
            data = file.read_bytes()
        except OSError:
            continue
        if any(word in data for word in words):
            found.others[file] = data
        else:
            library.append(file)
    found.library = library


def _checked(path: Path) -> Path:
    absolute = Path(os.path.abspath(path))
    if not absolute.exists():
        reason = "is a link to nothing" if absolute.is_symlink() else "does not exist"
        raise PathProblem(f"{path}: {reason}")
    if not (absolute.is_file() or absolute.is_dir()):
        raise PathProblem(f"{path}: is neither a file nor a directory")
    return absolute


def _take(file: Path, found: Found, *, explicit: bool) -> None:
    found.seen += 1
    try:
        data = file.read_bytes()
    except OSError as error:
        if explicit or not file.is_symlink():
            found.unread.append((file, error.strerror or str(error)))
        return
    if any(word in data for word in WORDS):
        found.candidates[file] = data
    elif any(word in data for word in LATER_LIFE):
        found.others[file] = data
    else:
        found.library.append(file)


def _walk(top: Path, excluded: GitIgnoreSpec) -> Iterator[Path]:
    """Python files under ``top`` in sorted order, ignored and foreign trees left out."""
    yield from _directory(top, top, top.resolve(), _specs_above(top), excluded)


Specs = tuple[tuple[Path, GitIgnoreSpec], ...]


def _directory(
    directory: Path, top: Path, real_top: Path, specs: Specs, excluded: GitIgnoreSpec
) -> Iterator[Path]:
    own = _spec(directory)
    if own is not None:
        specs = (*specs, (directory, own))
    try:
        entries = sorted(os.scandir(directory), key=lambda e: e.name)
    except OSError:
        return
    for entry in entries:
        is_directory = entry.is_dir()
        if not is_directory and not entry.name.endswith(SUFFIXES):
            continue
        path = directory / entry.name
        if entry.is_symlink() and not path.resolve().is_relative_to(real_top):
            continue
        if _ignored(path, is_directory, specs) or excluded.match_file(
            path.relative_to(top).as_posix()
        ):
            continue
        if not is_directory:
            yield path
        elif entry.name not in SKIPPED and not (path / "pyvenv.cfg").exists():
            if entry.is_symlink() and directory.resolve().is_relative_to(path.resolve()):
                continue  # a link to a directory above: a loop
            yield from _directory(path, top, real_top, specs, excluded)


def _ignored(path: Path, is_directory: bool, specs: Specs) -> bool:
    """Git's rule: the last pattern that says something decides, inner files after outer ones."""
    verdict = False
    for base, spec in specs:
        name = path.relative_to(base).as_posix() + ("/" if is_directory else "")
        result = spec.check_file(name).include
        if result is not None:
            verdict = result
    return verdict


def _spec(directory: Path) -> GitIgnoreSpec | None:
    file = directory / ".gitignore"
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return GitIgnoreSpec.from_lines(lines)


def _specs_above(top: Path) -> Specs:
    """``.gitignore`` files between ``top`` and the root of its repository."""
    repository = git_root(top)
    if repository is None or repository == top:
        return ()
    between = [p for p in reversed(top.parents) if p.is_relative_to(repository)]
    found = [(p, _spec(p)) for p in between]
    return tuple((p, spec) for p, spec in found if spec is not None)


def git_root(path: Path) -> Path | None:
    """The top of the git work tree that ``path`` lies in."""
    for directory in (path, *path.parents):
        if (directory / ".git").exists():
            return directory
    return None
