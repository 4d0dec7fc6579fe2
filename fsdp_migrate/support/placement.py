"""Where the support module goes, what it holds, and how it is imported there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fsdp_migrate.proposal import Edit
from fsdp_migrate.trace.project import Module, Project


def place(
    project: Project, edits: Mapping[Module, list[Edit]]
) -> tuple[dict[Module, list[Edit]], dict[Path, bytes]]:
    return dict(edits), {}
