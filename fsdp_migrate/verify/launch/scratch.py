"""A private copy of a source tree for one run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

# Never part of a program's input, and often the bulk of a working tree.
SKIPPED = frozenset(
    {
        ".cache",
        ".eggs",
        ".fsdp-migrate",
        ".git",
        ".hg",
        ".idea",
        ".mypy_cache",
        ".nox",
        ".pytest_cache",
        ".ruff_cache",
        ".svn",
        ".tox",
        ".venv",
        ".vscode",
        "__pycache__",
        "node_modules",
        "venv",
        "wandb",
    }
)

_METADATA = ".metadata"  # what makes a folder one checkpoint of torch.distributed.checkpoint


def copy_tree(source: Path, target: Path, *, share: Iterable[str] = ()) -> list[str]:
    """Copy ``source`` to ``target`` (which must not exist) and answer what was skipped.

    Every run gets its own copy, so that what one run writes (checkpoints, caches) can neither reach
    the user's tree nor be found by the next run. Links to files are copied as files, for the same
    reason; links that lead nowhere are skipped. Paths in ``share`` become links to the original:
    the caller vouches that the program only reads them.

    Raises :class:`OSError` when a file cannot be read or written.
    """
    shared = {PurePosixPath(path) for path in share}
    skipped: list[str] = []
    target.mkdir(parents=True)
    for folder, subfolders, files in os.walk(source):
        below = PurePosixPath(Path(folder).relative_to(source).as_posix())
        kept = []
        for name in sorted(subfolders):
            path = below / name
            place = Path(folder, name)
            if path in shared:
                (target / path).symlink_to(place.resolve())
            elif name in SKIPPED or _is_environment(place) or target == place:
                skipped.append(path.as_posix())
            elif place.is_symlink():
                _copy_linked_folder(place, target / path, source, skipped, path)
            else:
                (target / path).mkdir()
                kept.append(name)
        subfolders[:] = kept
        for name in sorted(files):
            _copy_file(Path(folder, name), target / below / name, below / name, shared, skipped)
    return skipped


def add_files(source: Path, target: Path) -> None:
    """Put every file below ``source`` to the same place below ``target``, replacing what is there.

    Raises :class:`OSError` when a file cannot be read or written.
    """
    for place in sorted(source.rglob("*")):
        if place.is_file():
            path = target / place.relative_to(source)
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(place, path)


def input_files(source: Path) -> Iterator[tuple[str, Path]]:
    """Every file that :func:`copy_tree` would copy: path below ``source`` and where it is."""
    for folder, subfolders, files in os.walk(source):
        subfolders[:] = sorted(
            name
            for name in subfolders
            if name not in SKIPPED and not _is_environment(Path(folder, name))
        )
        for name in sorted(files):
            place = Path(folder, name)
            yield place.relative_to(source).as_posix(), place


def find_written(tree: Path, source: Path) -> list[str]:
    """What a run wrote into its scratch copy of ``source``: files, and folders that are one
    checkpoint, relative to the tree."""
    known = {name: place.stat().st_mtime_ns for name, place in input_files(source)}
    found: dict[str, None] = {}
    for name, place in input_files(tree):
        if known.get(name) == place.stat().st_mtime_ns:
            continue
        folder = next(
            (p for p in Path(name).parents if p != Path() and (tree / p / _METADATA).is_file()),
            None,
        )
        found[folder.as_posix() if folder is not None else name] = None
    return list(found)


def changed_sources(before: Path, after: Path) -> frozenset[str]:
    """The Python files that are not the same in both trees, as paths below them."""
    sides = [
        {name: place.read_bytes() for name, place in input_files(tree) if name.endswith(".py")}
        for tree in (before, after)
    ]
    return frozenset(
        name
        for name in sides[0].keys() | sides[1].keys()
        if sides[0].get(name) != sides[1].get(name)
    )


def _is_environment(folder: Path) -> bool:
    return (folder / "pyvenv.cfg").is_file()


def _copy_linked_folder(
    place: Path, target: Path, source: Path, skipped: list[str], path: PurePosixPath
) -> None:
    """Keep a link inside the tree as a relative link; leave out one that leads outside.

    A link to the outside would let the program write to the user's own files.
    """
    resolved = place.resolve()
    root = source.resolve()
    if resolved.is_relative_to(root) and not Path(os.readlink(place)).is_absolute():
        target.symlink_to(os.readlink(place))
    else:
        skipped.append(f"{path.as_posix()} (a link out of the tree)")


def _copy_file(
    place: Path,
    target: Path,
    path: PurePosixPath,
    shared: set[PurePosixPath],
    skipped: list[str],
) -> None:
    if path in shared:
        target.symlink_to(place.resolve())
    elif place.is_file():
        shutil.copy2(place, target)
    else:  # a dangling link, a socket, a pipe
        skipped.append(path.as_posix())
