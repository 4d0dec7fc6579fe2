"""The record file of one rank, and its pulse."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import IO, Any

PULSE_BYTES = 160


class Recorder:
    """Writes the events of this process once its rank is known.

    Two files in ``folder``: ``rank-R.jsonl`` holds one event a line; ``rank-R.pulse`` always holds
    what the rank did last, in one fixed-size line replaced in place, so that a supervisor can tell
    a silent rank from a busy one and say where it stopped.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rank = -1
        self.world = 0
        self._owner = os.getpid()
        self._lines: IO[str] | None = None
        self._pulse = -1
        self._pending: list[dict[str, Any]] = []
        self.beats = 0

    @property
    def opened(self) -> bool:
        """Whether this process is a known rank (and not a fork of one)."""
        return self._lines is not None and self._owner == os.getpid()

    def adopt(self) -> None:
        """Let a process that the program forked record, which is a rank; unless the one that it was
        forked from is one."""
        if self._lines is None:
            self._owner = os.getpid()

    def open(self, rank: int, world: int, meta: dict[str, Any]) -> None:
        """Start the files of ``rank`` with a ``meta`` record, then what was held back so far."""
        self.rank, self.world = rank, world
        # Line buffered: whatever ends the process, complete lines are on disk.
        self._lines = open(  # noqa: SIM115
            self.folder / f"rank-{rank}.jsonl", "w", encoding="utf-8", buffering=1
        )
        self._pulse = os.open(
            self.folder / f"rank-{rank}.pulse", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644
        )
        self.write("meta", rank=rank, world=world, pid=os.getpid(), **meta)
        pending, self._pending = self._pending, []
        for event in pending:
            self._put(event)

    def write(self, kind: str, /, **fields: Any) -> None:
        """Record one event; held back in memory until the rank is known."""
        event = {"t": kind, "at": round(time.time(), 4), **fields}
        if self.opened:
            self._put(event)
        elif self._owner == os.getpid():
            self._pending.append(event)

    def _put(self, event: dict[str, Any]) -> None:
        assert self._lines is not None
        self._lines.write(json.dumps(event, separators=(",", ":")) + "\n")

    def beat(self, says: str) -> None:
        """Replace the pulse line by a running number and ``says``. Costs one system call."""
        if not self.opened:
            return
        self.beats += 1
        text = f"{self.beats} {says}".encode("ascii", "replace")[: PULSE_BYTES - 1]
        os.pwrite(self._pulse, text.ljust(PULSE_BYTES - 1) + b"\n", 0)

    def error(self, where: str) -> None:
        """Record the exception being handled: something here failed and the record has a hole."""
        trace = traceback.format_exc(limit=-6)
        self.write("error", where=where, message=str(sys.exc_info()[1]), traceback=trace)

    def flush(self) -> None:
        """Force everything to disk."""
        if self.opened and self._lines is not None:
            self._lines.flush()
            os.fsync(self._lines.fileno())
