"""One question put to two recordings, and its answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from fsdp_migrate.verify.compare.envelope import Judged


class Status(Enum):
    """How a gate ended."""

    PASS = "pass"
    FAIL = "fail"
    VOID = "void"
    """It could not be decided; this is never a pass."""
    COST = "cost"
    """The same training, at another price: other units, other gathers."""
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


@dataclass(frozen=True)
class Question:
    """What a gate asks. Its methods make the answers::

    Question("steps", "steps").fails("2 ranks before, 1 after")
    """

    key: str
    title: str

    def answer(self, status: Status, says: str, hint: str = "", **more: Any) -> Gate:
        return Gate(key=self.key, title=self.title, status=status, says=says, hint=hint, **more)

    def passes(self, says: str, **more: Any) -> Gate:
        return self.answer(Status.PASS, says, **more)

    def fails(self, says: str, hint: str = "", **more: Any) -> Gate:
        return self.answer(Status.FAIL, says, hint, **more)

    def costs(self, says: str, hint: str = "", **more: Any) -> Gate:
        return self.answer(Status.COST, says, hint, **more)

    def void(self, says: str, hint: str = "") -> Gate:
        return self.answer(Status.VOID, says, hint)

    def note(self, says: str, hint: str = "", **more: Any) -> Gate:
        return self.answer(Status.NOTE, says, hint, **more)

    def judge(self, shown: Judged, says: str, hint: str = "", *, ok: bool, **more: Any) -> Gate:
        """The answer that a difference gives; the ``hint`` is for a failure only."""
        numbers = {"measured": shown.measured, "allowed": shown.allowed, "twin": shown.twin}
        if ok and shown.hopeless:
            return self.answer(Status.VOID, _hopeless(shown), AMPLIFIES, **numbers, **more)
        status = Status.PASS if ok else Status.FAIL
        return self.answer(status, says, "" if ok else hint, **numbers, **more)


AMPLIFIES = "the program amplifies rounding: fewer steps, float64, or a fixed seed"


def _hopeless(shown: Judged) -> str:
    where = f" in the {shown.where}" if shown.where else ""
    return f"for what rounding alone does, {100 * shown.allowed:.2g} % had to be allowed{where}"


def first_of(gates: Iterable[Gate], *statuses: Status) -> Gate | None:
    """The first gate that ended so: with the first status if any did, else with the next one."""
    found = list(gates)
    return next((gate for each in statuses for gate in found if gate.status is each), None)


def plural(count: int, word: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
