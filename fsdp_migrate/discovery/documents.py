"""What a project's documents say: the models that a library is shown with are in no file of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fsdp_migrate.discovery.walk import SKIPPED

SUFFIXES = (".md", ".rst")
LONGEST = 1_000_000  # bytes of a file that is read


def text(directories: Sequence[Path]) -> bytes:
    """All documents below some directories."""
    found: dict[str, None] = {}
    for top in directories:
        for directory, below, names in os.walk(top):
            below[:] = sorted(set(below) - SKIPPED)
            paths = (os.path.join(directory, n) for n in sorted(names) if n.endswith(SUFFIXES))
            found |= dict.fromkeys(path for path in paths if not os.path.islink(path))
    return b"\n".join(map(_read, found))


def _read(file: str) -> bytes:
    try:
        path = Path(file)
        return path.read_bytes() if path.stat().st_size <= LONGEST else b""
    except OSError:
        return b""
