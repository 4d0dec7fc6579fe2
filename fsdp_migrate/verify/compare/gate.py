"""One question put to two recordings, and its answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Status(Enum):
    """How a gate ended."""

    PASS = "pass"
    FAIL = "fail"
    VOID = "void"
    """It could not be decided; this is never a pass."""
    NOTE = "note"
    """A difference that is no defect by itself, or nothing to judge at this size."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The answer of one gate.

    ``measured`` and ``allowed`` are the numbers that decided, where it was numbers: relative
    differences unless ``says`` tells otherwise. ``twin`` is what rounding-size noise alone did to
    the original at the same place.
    """

    key: str
    title: str
    status: Status
    says: str
    measured: float | None = None
    allowed: float | None = None
    twin: float | None = None
    hint: str = ""
    details: tuple[str, ...] = field(default=())
    expected: tuple[str, ...] = field(default=())
    """Differences that belong to FSDP2 itself and were allowed for."""
    step: int | None = None
    """The step, from 1, at which it failed first, of gates that look at all steps."""
    part: str = ""
    """Which comparison it belongs to, where a verification makes several: ``in float32``."""

    def to_dict(self) -> dict[str, Any]:
        """The answer as JSON values."""
        return {
            "key": self.key,
            "title": self.title,
            "part": self.part,
            "status": self.status.value,
            "says": self.says,
            "measured": self.measured,
            "allowed": self.allowed,
            "twin": self.twin,
            "hint": self.hint,
            "details": list(self.details),
            "expected": list(self.expected),
        }


def plural(count: int, word: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
