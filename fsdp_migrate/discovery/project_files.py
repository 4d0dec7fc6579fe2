"""The files of a run, by how closely they are looked at."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath


@dataclass
class ProjectFiles:
    """``candidates`` mention FSDP, ``others`` may meet an FSDP model, ``library`` neither."""

    root: Path
    trees: tuple[Path, ...] = ()  # real directories: nothing outside of them is written
    directories: tuple[Path, ...] = ()  # those that were given: what is below them may be read
    candidates: dict[Path, bytes] = field(default_factory=dict)
    others: dict[Path, bytes] = field(default_factory=dict)
    library: list[str] = field(default_factory=list)  # paths of everything else, unparsed
    joined: set[Path] = field(default_factory=set)  # of the library: what the others import
    unread: list[tuple[Path, str]] = field(default_factory=list)
    commented: dict[Path, bytes] = field(default_factory=dict)  # with comments of ours, perhaps
    configurations: dict[Path, bytes] = field(default_factory=dict)  # no Python, with FSDP's word
    look_alikes: tuple[str, ...] = ()  # where nothing leads to torch's: what only sounds like it
    seen: int = 0

    @cached_property
    def configured(self) -> Mapping[str, tuple[str, ...]]:
        """What configurations name for hydra to call, by the key that it stands below."""
        from fsdp_migrate.discovery import configurations  # where something asks

        return configurations.targets(self.directories)

    @cached_property
    def documents(self) -> bytes:
        """What the documents in the directories say."""
        from fsdp_migrate.discovery import documents  # where something asks

        return documents.text(self.directories)

    def take(self, paths: Iterable[Path]) -> None:
        """Note that files of the library may meet an FSDP model."""
        for path in paths:
            self.others[path] = path.read_bytes()
            self.library.remove(str(path))
            self.joined.discard(path)

    @cached_property
    def _here(self) -> Path:
        return Path.cwd()

    def display(self, path: Path) -> str:
        """How messages name a file: by the way from the working directory, if both are in the
        project."""
        if path.is_relative_to(self._here):
            return path.relative_to(self._here).as_posix()
        inside = len(self.root.parts) > 1 and self._here.is_relative_to(self.root)
        if inside and path.is_relative_to(self.root):
            return PurePath(os.path.relpath(path, self._here)).as_posix()
        return path.as_posix()
