"""Blocks of shell scripts and their like: flags of commands, and variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.configurations.block import Block, File
from fsdp_migrate.configurations.formats.text import Edit
from fsdp_migrate.configurations.settings import Change


@dataclass(eq=False)
class Words(Block):
    """Settings among the words of a command."""

    def edit(self, changes: Sequence[Change], width: int) -> list[Edit]:
        return []

    def mark(self, name: str, sentence: str, width: int) -> list[Edit]:
        return []


def blocks(file: File) -> list[Block]:
    return []


def base(
    block: Words, files: Mapping[Path, Sequence[Block]], root: Path
) -> tuple[list[Block], str]:
    return [], ""
