"""One run of a program: which version, on how many ranks, with what done to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.verify.events import Role
from fsdp_migrate.verify.inject.config import Changes, Precision


@dataclass(frozen=True, kw_only=True)
class Job(Changes):
    """What to run. ``name`` is unique among the jobs of one verification."""

    role: Role
    name: str
    nproc: int
    args: tuple[str, ...] = ()
    again: bool = False
    """Whether the run repeats an earlier one as it was."""
    files: Path | None = None
    """A folder whose files are put into the scratch copy first (checkpoints to resume from)."""

    @property
    def migrated(self) -> bool:
        """Whether it runs the migrated tree."""
        return self.role is Role.AFTER

    @property
    def observed(self) -> bool:
        """Whether it is a plain run of the original, which tells where FSDP1 is used."""
        plain = self.precision is Precision.NATIVE and not self.timing
        return self.role is Role.BEFORE and plain
