"""The search for as much of a migration as trains the same.

What is taken or left is numbered: each number is a unit (``migration/units.py``). The first attempt
takes every unit. While an attempt does not train the same, the unit that its evidence points at is
left as well, or half of the rest where the evidence points nowhere; a unit without which it fails
all the same is no suspect any more. What was left in vain is taken again afterwards: of the units
that stay left, none could be taken alone.

The search is deterministic: the same answers of ``train`` lead to the same attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from fsdp_migrate.verify.compare.gate import plural
from fsdp_migrate.verify.report.model import Report, Verdict

_ORIGINAL_ALONE = frozenset(
    {Verdict.BEFORE_FAILED, Verdict.BEFORE_HUNG, Verdict.UNRECORDED}
)  # leaving something cannot change these


@dataclass(frozen=True)
class Suspect:
    """A unit that a failure points at, and the evidence in one sentence."""

    unit: int
    evidence: str


@dataclass(frozen=True)
class Attempt:
    """One migration that was tried: the units that it left, and what the programs did then."""

    left: frozenset[int]
    why: str = ""
    """What was left last, or taken again last, and the evidence for it."""
    reports: tuple[Report, ...] = ()
    """Of the programs in their order, as far as they passed; the last one decides. None where all
    units are left: that is the original itself."""
    seconds: float = 0.0

    @property
    def report(self) -> Report | None:
        """The report that decides."""
        return self.reports[-1] if self.reports else None

    @property
    def passes(self) -> bool:
        return all(report.exit_code == 0 for report in self.reports)


@dataclass(frozen=True)
class Limits:
    """When a search ends before it is done."""

    attempts: int
    seconds: float


class Stopped(Exception):
    """The search ends here; its message says why."""


@dataclass
class Search:
    """A search over the units ``units``.

    ``train`` tries one migration: it gets the units to leave and answers the programs' reports.
    ``suspect`` names the units that an attempt's failure points at, the likeliest first.
    """

    units: Sequence[int]
    train: Callable[[frozenset[int]], tuple[Report, ...]]
    suspect: Callable[[Attempt], Sequence[Suspect]]
    limits: Limits
    tell: Callable[[int, Attempt], None] = lambda number, attempt: None
    """Is told of each attempt when it is done, and which one it is, from 1."""
    attempts: list[Attempt] = field(default_factory=list)
    best: Attempt | None = None
    """The attempt that trains the same and leaves least."""
    stopped: str = ""
    """Why the search ended before it was done."""

    def run(self) -> None:
        """Search until it is done or a limit is reached.

        Raises:
            KeyboardInterrupt: it was interrupted; ``best`` is what was found until then.
        """
        self._started = monotonic()
        try:
            self._take_all_that_pass()
        except Stopped as stop:
            self.stopped = str(stop)

    def _take_all_that_pass(self) -> None:
        attempt = self._try(frozenset(), "")
        cleared: set[int] = set()
        while not attempt.passes:
            rest = [unit for unit in self.units if unit not in attempt.left]
            suspects = [s for s in self.suspect(attempt) if s.unit in rest]
            self._require_that_leaving_helps(attempt, suspects)
            suspects = [s for s in suspects if s.unit not in cleared]
            if not suspects:
                needed = attempt.left | self._minimal(attempt.left, rest)
                attempt = self._try(needed, _HALVES)
                break
            without = self._try(attempt.left | {suspects[0].unit}, suspects[0].evidence)
            if _fail_alike(attempt, without):
                cleared.add(suspects[0].unit)
            else:
                attempt = without
        self._minimal(frozenset(), sorted(attempt.left))

    def _require_that_leaving_helps(self, failed: Attempt, suspects: Sequence[Suspect]) -> None:
        """
        Raises:
            Stopped: whatever is left, the answer stays the same.
        """
        report = failed.report
        assert report is not None, "the original itself passes"
        alone = report.verdict in _ORIGINAL_ALONE
        if alone or (report.verdict is Verdict.INCONCLUSIVE and not suspects):
            raise Stopped(f"{report.title}: {report.says}")

    def _minimal(self, fixed: frozenset[int], group: Sequence[int]) -> frozenset[int]:
        """The units of ``group`` that have to be left beside ``fixed``, where leaving all of them
        passes (delta debugging: Zeller and Hildebrandt, 2002)."""
        if not group or self._try(fixed, "taken again, as it may not be the cause").passes:
            return frozenset()
        if len(group) == 1:
            return frozenset(group)
        half = len(group) // 2
        first, second = group[:half], group[half:]
        for part in (first, second):
            if self._try(fixed.union(part), _HALVES).passes:
                return self._minimal(fixed, part)
        needed = self._minimal(fixed.union(second), first)
        return needed | self._minimal(fixed | needed, second)

    def _try(self, left: frozenset[int], why: str) -> Attempt:
        """What comes of leaving ``left``; from an earlier attempt where there was that one.

        Raises:
            Stopped: a limit is reached.
        """
        for attempt in self.attempts:
            if attempt.left == left:
                return attempt
        if left.issuperset(self.units):
            return self._done(Attempt(left, why))
        self._check_limits()
        began = monotonic()
        reports = self.train(left)
        return self._done(Attempt(left, why, reports, monotonic() - began))

    def _done(self, attempt: Attempt) -> Attempt:
        self.attempts.append(attempt)
        better = self.best is None or len(attempt.left) < len(self.best.left)
        if attempt.passes and better:
            self.best = attempt
        self.tell(len(self.attempts), attempt)
        return attempt

    def _check_limits(self) -> None:
        trained = [attempt for attempt in self.attempts if attempt.reports]
        if len(trained) >= self.limits.attempts:
            raise Stopped(f"{plural(len(trained), 'attempt')} is the limit")
        spent = monotonic() - self._started
        longest = max((attempt.seconds for attempt in trained), default=0.0)
        if trained and spent + longest > self.limits.seconds:
            raise Stopped(f"the budget of {self.limits.seconds:g} s leaves no time for another")


def _fail_alike(one: Attempt, other: Attempt) -> bool:
    """Whether leaving more changed nothing about a failure."""
    if one.report is None or other.report is None or other.passes:
        return False
    said = {(len(a.reports), a.reports[-1].verdict, a.reports[-1].says) for a in (one, other)}
    return len(said) == 1


_HALVES = "nothing tells which one it is, so halves are tried"
