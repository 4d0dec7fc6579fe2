"""Compare the two versions of a program, in one setting."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsdp_migrate.verify.compare.envelope import ROUNDING
from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.gate import plural
from fsdp_migrate.verify.compare.gates.start import drawn_apart
from fsdp_migrate.verify.compare.gates.training import horizon
from fsdp_migrate.verify.compare.judge import Judgement, cause_is_found, judge
from fsdp_migrate.verify.compare.recording import Recording
from fsdp_migrate.verify.events import Event, Role, Stage
from fsdp_migrate.verify.inject.config import Noise, Precision
from fsdp_migrate.verify.launch.job import Job
from fsdp_migrate.verify.launch.scratch import changed_sources
from fsdp_migrate.verify.trial.bench import Bench, Settled
from fsdp_migrate.verify.trial.repeat import require_repeatable


@dataclass(frozen=True, kw_only=True)
class Setting:
    """In which setting two versions are compared. ``label`` goes in front of the jobs' names."""

    label: str = ""
    nproc: int
    args: tuple[str, ...] = ()
    files: Path | None = None
    """Files that both versions find in their tree."""
    to_the_end: bool = False
    """Whether they go on to their end after the steps that are compared."""
    steps: int | None = None
    """How many steps are recorded, once the original has told."""
    last: int | None = None
    """The last step that any run may take."""

    def job_name(self, role: str) -> str:
        """The name of the plain job of a role."""
        return f"{role}{self.label}"

    def job(self, role: Role, suffix: str = "", **changes: Any) -> Job:
        """A job in this setting, named after its role, with some :class:`Changes`."""
        return Job(
            role=role,
            name=f"{role.value}{self.label}{suffix}",
            nproc=self.nproc,
            args=self.args,
            files=self.files,
            **{"to_the_end": self.to_the_end, "steps": self.steps, "last": self.last, **changes},
        )

    def as_far_as(self, before: Recording) -> Setting:
        """The setting for the runs that are compared with ``before``.

        One step more than the original has is enough to see that a run does not end.
        """
        steps, rest = len(before.steps), before.rest
        if rest is None or not rest.ended:
            return dataclasses.replace(self, steps=steps)
        if rest.steps == steps:
            return dataclasses.replace(self, steps=steps + 1, to_the_end=False)
        return dataclasses.replace(self, steps=steps, last=rest.steps + 1)


@dataclass
class Pair:
    """The answer for one setting."""

    setting: Setting
    evidence: Evidence
    judgement: Judgement
    full: Evidence | None = None
    """The same in float32, for programs that compute in 16 bits."""
    told: int | None = None
    """The step up to which numbers were compared, where that is not the last."""
    notes: list[str] = field(default_factory=list)

    @property
    def judged(self) -> int:
        """The last step whose numbers were compared."""
        return self.evidence.steps if self.told is None else self.told

    @property
    def extent(self) -> str:
        """What part of the program was judged."""
        steps, rest = self.evidence.steps, self.evidence.before.rest
        if rest is None or not rest.ended:
            what = "step 1" if steps == 1 else f"steps 1 to {steps}"
            what += " of a program that went on"
        elif rest.steps == steps:
            what = f"the whole program, {plural(steps, 'step')}"
        else:
            what = f"steps 1 to {steps}, and how all {rest.steps} ended"
        if self.told is not None:
            what += f" (numbers to step {self.told}: then rounding alone carries them too far)"
        return what

    @property
    def numbers(self) -> Evidence:
        """Where numbers are best compared: in float32 where that was run."""
        evidence = self.full if self.full is not None else self.evidence
        return evidence.until(self.judged)


def compare_versions(bench: Bench, setting: Setting) -> Pair:
    """Train both versions, the twin where it is needed, and judge.

    Three runs; a program that computes in 16 bits takes six, one whose weights are drawn on the
    meta device one more. A cause found by an exact question ends it after two, and one in which the
    original is run again, if that may explain it.

    Raises:
        Settled: a run failed.
    """
    before = bench.record(setting.job(Role.BEFORE))
    setting = setting.as_far_as(before)
    job = setting.job(Role.AFTER)
    again = setting.job(Role.BEFORE, "-again", again=True)
    try:
        after = bench.record(job)
    except Settled as settled:
        raise bench.explained(settled, job, before) from None
    evidence = Evidence(
        before,
        after,
        changed=changed_sources(bench.plan.before, bench.plan.after),
        reduces_more=bench.plan.reduces_more,
    )
    if drawn_apart(evidence):
        # Both draw their weights on the meta device, in different orders: compared as they are,
        # they are two unrelated models.
        start = str(bench.endings[setting.job(Role.BEFORE).name].folder)
        same_start = setting.job(Role.AFTER, "-same-start", start=start)
        evidence = dataclasses.replace(evidence, after=bench.record(same_start), drawn=after)
    if cause_is_found(evidence):
        judgement = judge(evidence)
        require_repeatable(bench, again, evidence, judgement)
        return Pair(setting, evidence, judgement)
    evidence = _with_twin(bench, setting, evidence, Precision.NATIVE)
    full: Evidence | None = None
    notes: list[str] = []
    if before.coarse and bench.plan.precision == "both":
        full, notes = _compare_in_float32(bench, setting, drawn=evidence.drawn is not None)
    bench.on_event(Event(Stage.JUDGE))
    told = _told(bench, evidence if full is None else full)
    judgement = judge(evidence, full, told)
    require_repeatable(bench, again, evidence, judgement)
    return Pair(setting, evidence, judgement, full, told, notes)


def _told(bench: Bench, evidence: Evidence) -> int | None:
    """The last step whose numbers can be compared, if it is not the last and yet enough.

    Only where the number of steps was left to verify: what was asked for is not cut short.
    """
    least = bench.plan.grow_after
    steps = horizon(evidence)
    return steps if least is not None and least <= steps < evidence.steps else None


def _with_twin(
    bench: Bench, setting: Setting, evidence: Evidence, precision: Precision
) -> Evidence:
    if not bench.plan.twin:
        return evidence
    noise = Noise(amplitude=ROUNDING[evidence.before.precision], seed=1)
    suffix = "" if precision is Precision.NATIVE else f"-{precision.value}"
    twin = bench.record(setting.job(Role.TWIN, suffix, noise=noise, precision=precision))
    return dataclasses.replace(evidence, twin=twin)


def _compare_in_float32(
    bench: Bench, setting: Setting, *, drawn: bool
) -> tuple[Evidence | None, list[str]]:
    """Both versions computed in float32, where rounding no longer hides differences.

    Not every program can be computed so; then its numbers are compared in its own precision only,
    and the report says so.
    """
    # What the program casts by its own code has to be covered too, where it can be: a migration
    # casts by hand what FSDP1 cast by a buffer_dtype.
    why = ""
    for precision in (Precision.STORED_FLOAT32, Precision.FLOAT32):
        sides: list[Recording] = []
        start: str | None = None
        try:
            for role in (Role.BEFORE, Role.AFTER):
                suffix = f"-{precision.value}"
                changes = {"precision": precision, "start": start, "to_the_end": False}
                job = setting.job(role, suffix, **changes)
                sides.append(bench.record(job))
                start = str(bench.endings[job.name].folder) if drawn else None
        except Settled as settled:
            why = why or f"{'migrated' if sides else 'original'} program: {settled.says}"
            continue
        if sides[0].coarse:
            continue
        evidence = Evidence(sides[0], sides[1], reduces_more=bench.plan.reduces_more)
        try:
            return _with_twin(bench, setting, evidence, precision), []
        except Settled:
            return evidence, ["the noise twin does not run in float32"]
    return None, [f"the program could not be computed in float32 ({why or 'it casts by itself'})"]
