"""Imports of a project by its own name which lead to none of its files.

What a project installs may lie under another name, in a way that its metadata does not say in
words: ``package_dir={"tool": here}``. Its own imports of it are followed nowhere then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fsdp_migrate.analysis.installed_packages import METADATA, declared, renamed


def leading_nowhere(
    starts: Sequence[Path], files: Sequence[Path], root: Path
) -> Iterator[tuple[Path, int, str]]:
    """The first import of each name that a project has declared and no file has: where it stands,
    and the name.

    Args:
        starts: files whose projects are asked about.
        files: all that there are below ``root``.
    """
    for project in sorted(filter(None, {_project(path.parent, root) for path in starts})):
        known = {name[0] for name, place in renamed(project).items() if place.is_dir()}
        lost = [name for name in sorted(declared(project) - known) if not _lies(name, files, root)]
        inside = sorted(p for p in files if p.is_relative_to(project)) if lost else []
        for name in lost:
            asked = re.compile(rb"^[ \t]*(?:from|import)[ \t]+%s\b" % name.encode(), re.M)
            for path in inside:
                data = _bytes(path)
                match = asked.search(data)
                if match is not None:
                    yield path, data.count(b"\n", 0, match.start()) + 1, name
                    break


def _project(directory: Path, root: Path) -> Path | None:
    """The directory with metadata around another one, in what is looked at."""
    for place in (directory, *directory.parents):
        if any((place / name).is_file() for name in METADATA):
            return place
        if place == root or (place / ".git").exists():
            return None
    return None


def _lies(name: str, files: Sequence[Path], root: Path) -> bool:
    """Whether a file, or a directory around one, has a name."""
    above = len(str(root.parent).rstrip("/"))
    ways = f"/{name}/", f"/{name}."
    return any(way in str(path)[above:] for path in files for way in ways)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
