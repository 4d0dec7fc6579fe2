"""The search for the migration that trains the same.

What is migrated is numbered: each number is a unit (``migration/units.py``). The first attempt
takes the first form of everything. While an attempt does not train the same, the unit that its
evidence points at takes the next form of something in it, and is left after the last; a unit whose
forms change nothing about the failure is no suspect any more. Where the evidence points nowhere,
halves are left. What took another form in vain takes its first one again afterwards: of what did
not keep that, nothing could alone.

The first form of some places rests on what a run of the original has shown. Where that does not
train the same, the second attempt rests on the code alone, before anything is suspected; what the
run showed is believed again at the end where that did no harm.

The search is deterministic: the same answers of ``train`` lead to the same attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic

from fsdp_migrate.planning.forms import Place
from fsdp_migrate.verify.compare.gate import plural
from fsdp_migrate.verify.compare.sites import KnownSite
from fsdp_migrate.verify.report.model import Report, Verdict

OF_THE_ORIGINAL = frozenset({Verdict.BEFORE_FAILED, Verdict.BEFORE_HUNG, Verdict.UNRECORDED})
"""Whatever is done to the migrated program, these verdicts stay as they are."""
OF_THE_RUN = -1
"""In the place of a unit: what the run showed, which may concern sites of any unit, or none."""


@dataclass(frozen=True, order=True)
class Other:
    """Another form of something in a unit: forms of sites that are passed over for it."""

    unit: int
    """Or ``OF_THE_RUN``."""
    what: str
    """The form that is taken, and where."""
    passed_over: tuple[tuple[Place, str], ...]


@dataclass(frozen=True)
class Forms:
    """What is not as it is written first: the sites in other forms, the units left as they were."""

    taken: frozenset[Other] = frozenset()
    left: frozenset[int] = frozenset()

    @property
    def may_leave(self) -> bool:
        """Whether it may leave models as they were that are written out first."""
        return bool(self.left) or any(other.unit == OF_THE_RUN for other in self.taken)

    @property
    def others(self) -> frozenset[Other | int]:
        """All of it."""
        return self.taken | self.left

    def taking(self, other: Other) -> Forms:
        """The same with another form, in the place of those that it comes after."""
        over = set(other.passed_over)
        taken = (each for each in self.taken if not over > set(each.passed_over))
        return Forms(frozenset((*taken, other)), self.left)

    def with_left(self, units: Collection[int]) -> Forms:
        taken = (other for other in self.taken if other.unit not in units)
        return Forms(frozenset(taken), self.left.union(units))

    def only(self, others: Collection[Other | int]) -> Forms:
        """The same with everything else as it is written first."""
        return Forms(self.taken.intersection(others), self.left.intersection(others))


@dataclass(frozen=True)
class Suspect:
    """A unit that a failure points at, and the evidence in one sentence."""

    unit: int
    evidence: str
    sites: tuple[KnownSite, ...] = ()
    """Those that it points at, the likeliest first."""


@dataclass(frozen=True)
class Attempt:
    """One migration that was tried, and what the programs did then."""

    forms: Forms
    why: str = ""
    """The evidence for what changed since the attempt before."""
    reports: tuple[Report, ...] = ()
    """Of the programs in their order, as far as they passed; the last one decides. None where
    every model that was made is left: that is the original itself."""
    seconds: float = 0.0
    trained: bool = True
    """Whether programs were run; leaving all units needs no run."""

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
    """A search over ``units``.

    ``train`` tries one migration and answers the programs' reports. ``suspect`` names the units
    that an attempt's failure points at, the likeliest first. ``further`` answers with the forms of
    a suspect that come next, before its unit is left.
    """

    units: Sequence[int]
    train: Callable[[Forms], tuple[Report, ...]]
    suspect: Callable[[Attempt], Sequence[Suspect]]
    limits: Limits
    further: Callable[[Forms, Suspect], Iterable[Forms]] = lambda forms, suspect: ()
    on_code: Callable[[], Forms] = Forms
    """Answers with the forms that rest on nothing that only the run showed."""
    alike: Callable[[Forms, Forms], bool] = lambda one, other: False
    """Whether the same code is written in both."""
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
            passed = self._find_one_that_passes()
            self._write_out_again(passed, frozenset(), _in_order(passed.others))
        except Stopped as stop:
            self.stopped = str(stop)

    def _find_one_that_passes(self) -> Forms:
        attempt = self._on_the_code_alone(self._try(Forms(), ""))
        cleared: set[int] = set()
        while not attempt.passes:
            rest = [unit for unit in self.units if unit not in attempt.forms.left]
            suspects = [s for s in self.suspect(attempt) if s.unit in rest]
            self._require_that_forms_matter(attempt, suspects)
            suspects = [s for s in suspects if s.unit not in cleared]
            if not suspects:
                forms = attempt.forms.with_left(rest)
                return forms.only(
                    self._write_out_again(forms, attempt.forms.others, rest) | attempt.forms.others
                )
            changed = self._in_other_forms(attempt, suspects[0])
            if changed is None:
                cleared.add(suspects[0].unit)
            else:
                attempt = changed
        return attempt.forms

    def _on_the_code_alone(self, failed: Attempt) -> Attempt:
        """The attempt that rests on nothing that only the run showed; ``failed`` itself where it
        passes, and where that makes no difference, or leaves everything."""
        forms = self.on_code()
        if failed.passes or not forms.taken or self.alike(forms, failed.forms):
            return failed
        suspects = self.suspect(failed)
        self._require_that_forms_matter(failed, suspects)
        attempt = self._try(forms, "; ".join([*(s.evidence for s in suspects[:1]), _RUN]))
        proves_nothing = attempt.passes and not attempt.reports
        return failed if proves_nothing or _fail_alike(failed, attempt) else attempt

    def _in_other_forms(self, failed: Attempt, suspect: Suspect) -> Attempt | None:
        """The attempt with the first further form of a suspect that makes a difference."""
        for forms in self._further(failed.forms, suspect):
            attempt = self._try(forms, suspect.evidence)
            if not _fail_alike(failed, attempt):
                return attempt
        return None

    def _further(self, forms: Forms, suspect: Suspect) -> Iterator[Forms]:
        yield from self.further(forms, suspect)
        yield forms.with_left({suspect.unit})

    def _require_that_forms_matter(self, failed: Attempt, suspects: Sequence[Suspect]) -> None:
        """
        Raises:
            Stopped: whatever form is taken, the answer stays the same.
        """
        report = failed.report
        assert report is not None, "the original itself passes"
        undecided = report.verdict is Verdict.INCONCLUSIVE and not suspects
        if undecided or report.verdict in OF_THE_ORIGINAL:
            raise Stopped(f"{report.title}: {report.says}")

    def _write_out_again(
        self, forms: Forms, fixed: frozenset[Other | int], group: Sequence[Other | int]
    ) -> frozenset[Other | int]:
        """What of ``group`` is needed beside ``fixed``, where all of it passes (delta debugging:
        Zeller and Hildebrandt, 2002)."""
        if not group or self._try(forms.only(fixed), _AGAIN).passes:
            return frozenset()
        if len(group) == 1:
            return frozenset(group)
        half = len(group) // 2
        first, second = group[:half], group[half:]
        for part in (first, second):
            if self._try(forms.only(fixed.union(part)), _HALVES).passes:
                return self._write_out_again(forms, fixed, part)
        needed = self._write_out_again(forms, fixed.union(second), first)
        return needed | self._write_out_again(forms, fixed | needed, second)

    def _try(self, forms: Forms, why: str) -> Attempt:
        """What comes of these forms; from an earlier attempt where there was that one.

        Raises:
            Stopped: a limit is reached.
        """
        for attempt in self.attempts:
            if attempt.forms == forms:
                return attempt
            if self.alike(attempt.forms, forms):
                return self._keep(replace(attempt, forms=forms))
        if forms.left.issuperset(self.units):
            return self._done(Attempt(forms, why, trained=False))
        self._check_limits()
        began = monotonic()
        reports = self.train(forms)
        return self._done(Attempt(forms, why, reports, monotonic() - began))

    def _done(self, attempt: Attempt) -> Attempt:
        self.attempts.append(attempt)
        self._keep(attempt)
        self.tell(len(self.attempts), attempt)
        return attempt

    def _keep(self, attempt: Attempt) -> Attempt:
        if attempt.passes and (self.best is None or _cost(attempt) < _cost(self.best)):
            self.best = attempt
        return attempt

    def _check_limits(self) -> None:
        trained = [attempt for attempt in self.attempts if attempt.trained]
        if len(trained) >= self.limits.attempts:
            raise Stopped(f"{plural(len(trained), 'attempt')} is the limit")
        spent = monotonic() - self._started
        longest = max((attempt.seconds for attempt in trained), default=0.0)
        if trained and spent + longest > self.limits.seconds:
            raise Stopped(f"the budget of {self.limits.seconds:g} s leaves no time for another")


def _cost(attempt: Attempt) -> tuple[bool, int, int]:
    """How much it leaves; most of all where nothing is left of the migration."""
    return not attempt.reports, len(attempt.forms.left), len(attempt.forms.taken)


def _in_order(others: Iterable[Other | int]) -> list[Other | int]:
    """The units that are left, then what takes another form."""
    every = list(others)
    left = sorted(each for each in every if isinstance(each, int))
    return [*left, *sorted(each for each in every if isinstance(each, Other))]


def _fail_alike(one: Attempt, other: Attempt) -> bool:
    """Whether another form changed nothing about a failure."""
    if one.report is None or other.report is None or other.passes:
        return False
    said = {(len(a.reports), a.reports[-1].verdict, a.reports[-1].says) for a in (one, other)}
    return len(said) == 1


_RUN = "what the run showed may not hold, so the code alone decides"
_AGAIN = "written out again, as it may not be the cause"
_HALVES = "nothing tells which one it is, so halves are tried"
