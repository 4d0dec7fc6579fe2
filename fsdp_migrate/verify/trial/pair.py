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
from fsdp_migrate.verify.compare.judge import NATIVE, Judgement, cause_is_found, judge
from fsdp_migrate.verify.compare.recording import Recording
from fsdp_migrate.verify.events import Event, Role, Stage
from fsdp_migrate.verify.inject.config import Noise, Precision
from fsdp_migrate.verify.launch.job import Job
from fsdp_migrate.verify.launch.scratch import changed_sources
from fsdp_migrate.verify.trial.bench import Bench, Settled
from fsdp_migrate.verify.trial.repeat import parts_for_twins, require_repeatable


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


@dataclass(frozen=True)
class InFloat32:
    """A program that computes in 16 bits, computed in float32: what both versions did, and how they
    were made to."""

    evidence: Evidence
    precision: Precision


@dataclass
class Pair:
    """The answer for one setting."""

    setting: Setting
    evidence: Evidence
    judgement: Judgement
    full: InFloat32 | None = None
    """The same in float32, for programs that compute in 16 bits."""
    notes: list[str] = field(default_factory=list)
    told: int | None = None
    """The step up to which numbers were compared, where that is not the last."""

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
        evidence = self.full.evidence if self.full is not None else self.evidence
        return evidence.until(self.judged)

    def judge(self) -> None:
        """Ask every gate, with what is recorded by now."""
        full = self.full.evidence if self.full is not None else None
        self.judgement = judge(self.evidence, full, self.told)

    def add_twin(self, bench: Bench) -> None:
        """Train the original's twin, unless it was trained already.

        Raises:
            Settled: it failed.
        """
        if self.setting.job_name(Role.TWIN.value) not in bench.recordings:
            twin = _twin(bench, self.setting, self.evidence.before, Precision.NATIVE)
            self.evidence = dataclasses.replace(self.evidence, twin=twin)

    def add_twin_of_numbers(self, bench: Bench) -> None:
        """Train the twin where numbers are best compared, unless it was trained already. In float32
        it may fail, which the notes say.

        Raises:
            Settled: it failed.
        """
        if self.full is None:
            self.add_twin(bench)
        elif self.full.evidence.twin is None:
            evidence, precision = self.full.evidence, self.full.precision
            try:
                twin = _twin(bench, self.setting, evidence.before, precision)
            except Settled:
                self.notes.append("the noise twin does not run in float32")
            else:
                self.full = InFloat32(dataclasses.replace(evidence, twin=twin), precision)


def compare_versions(bench: Bench, setting: Setting) -> Pair:
    """Train both versions and judge; train the original's twin only where something differs.

    Two runs where no difference goes beyond the floors, and one more where the twin has to tell how
    far rounding carries. A program that computes in 16 bits takes twice as many, one whose weights
    are drawn on the meta device one more, and one in which the original is run again, if that may
    explain what differs.

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
    full: InFloat32 | None = None
    notes: list[str] = []
    if before.coarse and bench.plan.precision == "both":
        full, notes = _compare_in_float32(bench, setting, drawn=evidence.drawn is not None)
    bench.on_event(Event(Stage.JUDGE))
    pair = Pair(setting, evidence, Judgement(()), full, notes)
    pair.judge()
    if bench.plan.twin:
        _judge_with_noise(bench, pair)
    require_repeatable(bench, again, pair.evidence, pair.judgement)
    return pair


def _judge_with_noise(bench: Bench, pair: Pair) -> None:
    """Judge again beside noise, where that may change something.

    How far 16 bits carry is known once the original was computed in float32, where nothing differs:
    what it computes otherwise there is noise enough. Only what is more than that needs the twin.
    """
    parts = parts_for_twins(pair.judgement)
    if parts == {NATIVE} and pair.full is not None:
        pair.evidence = dataclasses.replace(pair.evidence, twin=pair.full.evidence.before)
        pair.judge()
        if pair.judgement.first_failure is None:
            return
    if parts:
        pair.add_twin(bench)
        if parts != {NATIVE}:
            pair.add_twin_of_numbers(bench)
        pair.told = _told(bench, pair.numbers)
        pair.judge()


def _told(bench: Bench, evidence: Evidence) -> int | None:
    """The last step whose numbers can be compared, if it is not the last and yet enough.

    Only where the number of steps was left to verify: what was asked for is not cut short.
    """
    least = bench.plan.grow_after
    steps = horizon(evidence)
    return steps if least is not None and least <= steps < evidence.steps else None


def _twin(bench: Bench, setting: Setting, before: Recording, precision: Precision) -> Recording:
    """The original again, with noise of the size of its rounding.

    Raises:
        Settled: it failed.
    """
    noise = Noise(amplitude=ROUNDING[before.precision], seed=1)
    suffix = "" if precision is Precision.NATIVE else f"-{precision.value}"
    return bench.record(setting.job(Role.TWIN, suffix, noise=noise, precision=precision))


def _compare_in_float32(
    bench: Bench, setting: Setting, *, drawn: bool
) -> tuple[InFloat32 | None, list[str]]:
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
        return InFloat32(evidence, precision), []
    return None, [f"the program could not be computed in float32 ({why or 'it casts by itself'})"]
