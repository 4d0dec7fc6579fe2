"""Progress of a verification, for whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """Which of the runs."""

    BEFORE = "before"
    AFTER = "after"
    TWIN = "twin"


class Stage(Enum):
    """What just happened."""

    COPY = "copy"
    START = "start"
    STEP = "step"
    FINISH = "finish"
    JUDGE = "judge"


@dataclass(frozen=True)
class Event:
    """One thing that happened. ``step`` counts from 1 and is 0 outside :attr:`Stage.STEP`."""

    stage: Stage
    role: Role | None = None
    step: int = 0
    says: str = ""


def ignore(event: Event) -> None:
    """A listener for callers that want none."""
    del event
