"""The files of a run: those that use FSDP1, those that may meet its models, and the library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fsdp_migrate.discovery import gate
from fsdp_migrate.discovery.gate import Found


def find(
    paths: Sequence[Path], exclude: Sequence[str] = (), base: Path | None = None, *, jobs: int = 1
) -> Found:
    """Read every Python file under ``paths`` that could matter.

    :func:`fsdp_migrate.discovery.gate.mentioning` says which are looked at. What looks closer is
    loaded only where something mentions FSDP.

    Raises:
        PathProblem: a path does not exist, or nothing under the paths is Python.
    """
    found, rest = gate.mentioning(paths, exclude, base, jobs=jobs)
    if found.candidates:
        from fsdp_migrate.discovery import relevance

        relevance.sort(found, rest, jobs)
    else:
        found.library = rest
    return found
