"""How a run ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any


class End(Enum):
    """The ways a run can end."""

    FINISHED = "finished"
    """Every rank recorded its steps and came to an end."""
    CRASHED = "crashed"
    """A rank ended with an error."""
    HUNG = "hung"
    """No rank made any progress for too long; the run was stopped."""
    UNRECORDED = "unrecorded"
    """The run ended without an error, but no rank recorded a single optimizer step."""
    SPAWNS = "spawns"
    """The program makes its own ranks, and was started as several processes."""
    DEFEATED = "defeated"
    """The recorder never started in any process of the run."""


@dataclass(frozen=True)
class RankTrace:
    """What one rank was doing when a run was stopped."""

    rank: int
    last: str
    """The last collective or event, as a sentence."""
    issued: int
    """Number of collectives issued."""
    operation: str
    """Name of the last collective; ``-`` if the last event was none."""
    stack: tuple[str, ...]
    """Most recent call last, as ``file:line in function``; empty when it could not be had."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The end of one run. ``folder`` holds its records, ``logs`` what it printed."""

    end: End
    folder: Path
    logs: Path
    seconds: float
    says: str = ""
    """One sentence; empty for a run that finished."""
    failed_rank: int | None = None
    traceback: tuple[str, ...] = ()
    """The lines of the failing rank's traceback that matter to the program's author."""
    full: str = ""
    """The whole traceback, stack dump or log tail."""
    ranks: tuple[RankTrace, ...] = ()
    slowest_gap: float = 0.0
    """Longest silence between two signs of life after the first step, in seconds."""
    notes: tuple[str, ...] = field(default=())
    status: int = 0
    """The exit status of the rank that ended first with another one than 0."""
    tree: Path | None = None
    """The scratch copy that it ran in, with what it wrote; None for a run from the cache."""
    simulated: bool = False
    """Whether CUDA and NCCL were imitated."""
    launcher: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The facts as JSON values."""
        return {
            "end": self.end.value,
            "seconds": round(self.seconds, 2),
            "says": self.says,
            "status": self.status,
            "failed_rank": self.failed_rank,
            "traceback": self.full or "\n".join(self.traceback),
            "ranks": [
                {
                    "rank": trace.rank,
                    "last": trace.last,
                    "collectives": trace.issued,
                    "stack": list(trace.stack),
                }
                for trace in self.ranks
            ],
            "notes": list(self.notes),
            "simulated": self.simulated,
            "launcher": self.launcher,
        }
