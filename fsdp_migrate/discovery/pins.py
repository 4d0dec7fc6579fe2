"""The releases of frameworks that a project pins: ``accelerate==1.4.0`` in files that people write.

The nearest directory that has a pin counts, from a file upwards to the project's root. What is no
pin, such as a lower bound, says nothing, and neither do pins that differ.
"""

from __future__ import annotations

import re
from pathlib import Path

from fsdp_migrate.discovery import project_paths, torch_requirements

Release = tuple[int, ...]
_PIN = (
    r"""(?im)(?:^[ \t]*|["'])%s[ \t]*(?:\[[\w, .-]*\])?"""
    r"""[ \t]*={2,3}[ \t]*v?(\d{1,4}(?:\.\d{1,4})+)"""
)


def pinned(name: str, path: Path, top: Path) -> Release:
    """The release of a distribution that is pinned for a file, empty where none is."""
    directories = [path.parent, *path.parent.parents]
    if top not in directories:
        return ()
    for directory in directories[: directories.index(top) + 1]:
        found = _pins(name, directory, top)
        if found:
            return next(iter(found)) if len(found) == 1 else ()
    return ()


def _pins(name: str, directory: Path, top: Path) -> frozenset[Release]:
    pattern = re.compile(_PIN % re.escape(name))
    texts = (_text(path, top) for path in torch_requirements.files(directory))
    found = (match[1].split(".") for text in texts for match in pattern.finditer(text))
    return frozenset(tuple(map(int, parts)) for parts in found)


def _text(path: Path, top: Path) -> str:
    try:
        return project_paths.read_regular_file(path, (top,)).decode("utf-8", "replace")
    except OSError:
        return ""
