"""The answer of a verification."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from fsdp_migrate.verify.compare.coverage import listed
from fsdp_migrate.verify.compare.gate import AMPLIFIES, Gate, Status, first_of
from fsdp_migrate.verify.compare.gates.training import Row
from fsdp_migrate.verify.compare.observed import NOTHING, Observed
from fsdp_migrate.verify.compare.sites import Accounted, KnownSite
from fsdp_migrate.verify.launch.ending import Ending

SCHEMA = 1
"""Version of :meth:`Report.to_dict`."""


class Verdict(Enum):
    """The one answer."""

    SAME = "same_training"
    SAME_AT_OTHER_COST = "same_training_other_cost"
    """The same training, with more or less memory or communication."""
    DIFFERENT = "different"
    BEFORE_FAILED = "before_failed"
    """The original ends with an error; this says nothing about the migration."""
    BEFORE_HUNG = "before_hung"
    """The original stops making progress; nor does this."""
    AFTER_FAILED = "after_failed"
    """The original runs, the migrated program ends with an error."""
    AFTER_HUNG = "after_hung"
    """The original runs, the migrated program stops making progress."""
    UNRECORDED = "unrecorded"
    """A program ran to its end without training anything that could be recorded."""
    INCONCLUSIVE = "inconclusive"
    """Something could not be recorded or judged; the reason is in ``says``."""

    @property
    def exit_code(self) -> int:
        """0: the same; 1: the migrated program does not do the same; 2: not decided."""
        if self in (Verdict.SAME, Verdict.SAME_AT_OTHER_COST):
            return 0
        return 1 if self in (Verdict.DIFFERENT, Verdict.AFTER_FAILED, Verdict.AFTER_HUNG) else 2

    @property
    def word(self) -> str:
        """``PASS``, ``FAIL``, or ``UNDECIDED``."""
        return _WORDS[self.exit_code]

    @property
    def title(self) -> str:
        """The answer in a few words."""
        return _TITLES[self]


_WORDS = ("PASS", "FAIL", "UNDECIDED")

_TITLES = {
    Verdict.SAME: "same training",
    Verdict.SAME_AT_OTHER_COST: "same training, other cost",
    Verdict.DIFFERENT: "different training",
    Verdict.BEFORE_FAILED: "the original crashes",
    Verdict.BEFORE_HUNG: "the original hangs",
    Verdict.AFTER_FAILED: "the migrated program crashes",
    Verdict.AFTER_HUNG: "the migrated program hangs",
    Verdict.UNRECORDED: "nothing to compare",
    Verdict.INCONCLUSIVE: "inconclusive",
}


@dataclass(frozen=True, kw_only=True)
class World:
    """One number of ranks: losses as (before, after), and the largest absolute differences."""

    ranks: int
    first: tuple[float, float]
    last: tuple[float, float]
    loss_apart: float
    parameters_apart: float | None
    """Of the final parameters before and after; None where they were not written down."""
    from_first: float | None
    """The same against the original with the first number of ranks. Small only where all numbers
    of ranks train on the same global batch."""
    ok: bool

    def to_dict(self) -> dict[str, Any]:
        """The facts as JSON values."""
        return {
            "ranks": self.ranks,
            "first_loss": list(self.first),
            "last_loss": list(self.last),
            "loss_apart": self.loss_apart,
            "parameters_apart": self.parameters_apart,
            "parameters_from_first": self.from_first,
            "ok": self.ok,
        }


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind in the last step, on rank 0: (calls, bytes) before and after."""

    phase: str
    family: str
    dtype: str
    before: tuple[int, int]
    after: tuple[int, int]


@dataclass(frozen=True)
class Apart:
    """One parameter at the end: how far before and after are apart, and what was allowed."""

    name: str
    measured: float
    allowed: float
    twin: float | None


_AS_IT_IS = (
    "nothing was decided about the migration: make the program run as it was before, by its "
    "packages, data (--share, where git has none of it), arguments and environment, then verify "
    "again"
)


def _step(what: str, says: str, hint: str = "", places: tuple[str, ...] = ()) -> dict[str, Any]:
    """One of the things to look at, as JSON values."""
    return {"what": what, "says": says, "hint": hint, "places": list(places)}


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything a rendering needs."""

    verdict: Verdict
    says: str
    """The reason in one sentence; for a pass, what was compared."""
    strict_cost: bool = False
    """Whether another cost fails as well."""
    program: str
    before: str
    after: str
    setting: str
    """Ranks, backend, device, precision, steps, seed, in one line."""
    gates: tuple[Gate, ...] = ()
    simulated: bool = False
    """Whether CUDA and NCCL were imitated on CPUs, which belongs to the verdict."""
    rows: tuple[Row, ...] = ()
    worlds: tuple[World, ...] = ()
    """The table of numbers of ranks, where several were asked for."""
    traffic: tuple[Traffic, ...] = ()
    held: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Bytes of parameters that each rank holds, before and after."""
    parameters: tuple[Apart, ...] = ()
    """The parameters closest to their allowance, or furthest beyond it."""
    endings: dict[str, Ending] = field(default_factory=dict)
    """By job: ``before``, ``after``, ``twin``, and more where more was run."""
    patches: tuple[str, ...] = ()
    """What had to be changed in torch to run at all on this machine."""
    notes: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    """What this run could not check."""
    not_executed: tuple[str, ...] = ()
    """Blocks of lines that were changed and that no run came by: ``train.py:88-90``."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Versions, seed, arguments: what it takes to run it again."""
    seconds: float = 0.0
    kept: str | None = None
    observed: Observed = NOTHING
    """Where the original used FSDP1, and how."""
    accounted: Accounted | None = None
    """The same beside the sites of the rewriter; None where they were not asked for."""
    pointed: Mapping[tuple[str, str], tuple[KnownSite, ...]] = field(default_factory=dict)
    """The sites that a gate which did not pass points at, by its key and part."""

    def points_at(self, gate: Gate) -> str:
        """The sites that ``gate`` points at, as text; nothing where the recording does not tell."""
        sites = self.pointed.get((gate.key, gate.part), ())
        return listed([str(site) for site in sites])

    @property
    def caveat(self) -> str:
        """What is said beside the verdict: places that use FSDP1 and are no sites; and beside a
        pass, what was changed and never ran."""
        unseen = self.accounted.caveat if self.accounted is not None else ""
        passes = self.exit_code == 0 and self.not_executed
        never = f"changed and never ran: {listed(self.not_executed)}" if passes else ""
        return "; ".join(filter(None, (unseen, never)))

    @property
    def title(self) -> str:
        """The verdict in a few words."""
        stamp = ", in a CPU simulation of CUDA" if self.simulated else ""
        return self.verdict.title + stamp

    @property
    def first_failure(self) -> Gate | None:
        """The first gate that failed, which names the cause; else the first that is void; else the
        first that found another cost."""
        return first_of(self.gates, Status.FAIL, Status.VOID, Status.COST)

    @property
    def amplifies_rounding(self) -> bool:
        """Whether nothing failed, and rounding alone in the original leaves it open."""
        first = self.first_failure
        return first is not None and first.status is Status.VOID and first.hint == AMPLIFIES

    @property
    def exit_code(self) -> int:
        """See :attr:`Verdict.exit_code`; another cost is 1 where it was asked for."""
        if self.verdict is Verdict.SAME_AT_OTHER_COST:
            return int(self.strict_cost)
        return self.verdict.exit_code

    @property
    def word(self) -> str:
        """``PASS``, ``FAIL``, or ``UNDECIDED``, by the exit code."""
        return _WORDS[self.exit_code]

    @property
    def next(self) -> list[dict[str, Any]]:
        """What to look at next, as JSON values, the likeliest cause first."""
        listed: list[dict[str, Any]] = []
        of_original = self.verdict in (Verdict.BEFORE_FAILED, Verdict.BEFORE_HUNG)
        for role, ending in self.endings.items():
            if ending.says and role == ("before" if of_original else "after"):
                what = "the original" if of_original else "an error"
                hint = _AS_IT_IS if of_original else ""
                listed.append(_step(what, ending.says, hint, ending.traceback))
        first = self.first_failure
        if first is not None:
            sites = self.pointed.get((first.key, first.part), ())
            step = _step("a check", first.says, first.hint, first.details)
            listed.append({**step, "check": first.key, "sites": [s.to_dict() for s in sites]})
        elif not listed and self.exit_code == 2:
            listed.append(_step("the run", self.says))
        if self.accounted is not None and self.accounted.caveat:
            listed.append(_step("places that are no sites", self.accounted.caveat))
        if self.not_executed:
            said = "these lines were changed and never ran: run more of the program"
            listed.append(_step("lines that never ran", said, places=self.not_executed))
        return listed

    @property
    def expected(self) -> tuple[str, ...]:
        """Differences that belong to FSDP2 itself, seen and allowed for."""
        return tuple(dict.fromkeys(text for gate in self.gates for text in gate.expected))

    def to_dict(self) -> dict[str, Any]:
        """The answer as JSON values; the keys are stable within one ``schema``."""
        first = self.first_failure
        return {
            "schema": SCHEMA,
            "verdict": self.verdict.value,
            "simulated": self.simulated,
            "exit_code": self.exit_code,
            "says": self.says,
            "first_failure": first.key if first is not None else None,
            "next": self.next,
            "program": self.program,
            "before": self.before,
            "after": self.after,
            "setting": self.setting,
            "gates": [
                {
                    **gate.to_dict(),
                    "sites": [s.to_dict() for s in self.pointed.get((gate.key, gate.part), ())],
                }
                for gate in self.gates
            ],
            "fsdp1_uses": self.accounted.to_dict() if self.accounted is not None else None,
            "steps": [
                {
                    "step": row.step,
                    "before": row.before,
                    "after": row.after,
                    "difference": row.difference,
                    "allowed": row.allowed,
                    "twin": row.twin,
                    "norm_before": row.norms[0] if row.norms else None,
                    "norm_after": row.norms[1] if row.norms else None,
                }
                for row in self.rows
            ],
            "worlds": [world.to_dict() for world in self.worlds],
            "collectives": [
                {
                    "phase": t.phase,
                    "family": t.family,
                    "dtype": t.dtype,
                    "calls": [t.before[0], t.after[0]],
                    "bytes": [t.before[1], t.after[1]],
                }
                for t in self.traffic
            ],
            "parameter_bytes": [list(side) for side in self.held] if self.held else None,
            "worst_parameters": [dataclasses.asdict(each) for each in self.parameters],
            "runs": {role: ending.to_dict() for role, ending in self.endings.items()},
            "patches": list(self.patches),
            "expected": list(self.expected),
            "notes": list(self.notes),
            "limits": list(self.limits),
            "not_executed": list(self.not_executed),
            "facts": self.facts,
            "seconds": round(self.seconds, 2),
            "kept": self.kept,
        }
