"""How far a program is recorded."""

from __future__ import annotations

import time
from pathlib import Path

from fsdp_migrate.verify.inject.config import GROW_S, Config

_LAST = "last-step"


class Extent:
    """Tells which optimizer step is the last that is recorded; it is the same on every rank.

    Where that depends on the time, rank 0 decides it, one step ahead of the others: none of them
    can be further while ranks train together. What they would say of their own clocks might differ.
    """

    def __init__(self, config: Config) -> None:
        self._most = config.max_steps if config.steps is None else config.steps
        self._grow_after = config.grow_after if config.steps is None else None
        self._decided = Path(config.folder, _LAST)
        self._began: float | None = None

    def begin(self) -> None:
        """The first step begins."""
        self._began = self._began or time.monotonic()

    def step_ends(self, step: int, rank: int) -> None:
        """Rank 0 decides, once ``step``, counted from 1, is done, whether the next is the last."""
        if rank or self._grow_after is None or step < self._grow_after or self._decided.exists():
            return
        if self._began is not None and time.monotonic() - self._began > GROW_S:
            partial = self._decided.with_suffix(".partial")
            partial.write_text(str(step + 1), encoding="ascii")
            partial.replace(self._decided)

    def is_reached(self, step: int) -> bool:
        """Whether no step after ``step`` is recorded."""
        if step >= self._most:
            return True
        if self._grow_after is None or step < self._grow_after or not self._decided.exists():
            return False
        return step >= int(self._decided.read_text(encoding="ascii"))
