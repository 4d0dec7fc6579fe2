"""Compare the two versions of a program, in one setting."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsdp_migrate.verify.compare.envelope import ROUNDING
from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.gates.start import drawn_apart
from fsdp_migrate.verify.compare.judge import Judgement, cause_is_found, judge
from fsdp_migrate.verify.compare.recording import Recording
from fsdp_migrate.verify.events import Event, Role, Stage
from fsdp_migrate.verify.inject.config import Noise, Precision
from fsdp_migrate.verify.launch.job import Job
from fsdp_migrate.verify.launch.scratch import changed_sources
from fsdp_migrate.verify.trial.bench import Bench, Settled


@dataclass(frozen=True, kw_only=True)
class Setting:
    """In which setting two versions are compared. ``label`` goes in front of the jobs' names."""

    label: str = ""
    nproc: int
    args: tuple[str, ...] = ()
    files: Path | None = None
    """Files that both versions find in their tree."""

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
            **changes,
        )


@dataclass
class Pair:
    """The answer for one setting."""

    setting: Setting
    evidence: Evidence
    judgement: Judgement
    full: Evidence | None = None
    """The same in float32, for programs that compute in 16 bits."""
    notes: list[str] = field(default_factory=list)

    @property
    def numbers(self) -> Evidence:
        """Where numbers are best compared: in float32 where that was run."""
        return self.full if self.full is not None else self.evidence


def compare_versions(bench: Bench, setting: Setting, *, linger: bool = False) -> Pair:
    """Train both versions, the twin where it is needed, and judge.

    Three runs; a program that computes in 16 bits takes six, one whose weights are drawn on the
    meta device one more. A cause found by an exact question ends it after two.

    Raises:
        Settled: a run failed.
    """
    before = bench.record(setting.job(Role.BEFORE, linger=linger))
    job = setting.job(Role.AFTER, linger=linger)
    try:
        after = bench.record(job)
    except Settled as settled:
        raise bench.explained(settled, job, before) from None
    evidence = Evidence(before, after, changed=changed_sources(bench.plan.before, bench.plan.after))
    if drawn_apart(evidence):
        # Both draw their weights on the meta device, in different orders: compared as they are,
        # they are two unrelated models.
        start = str(bench.endings[setting.job(Role.BEFORE).name].folder)
        same_start = setting.job(Role.AFTER, "-same-start", start=start, linger=linger)
        evidence = dataclasses.replace(evidence, after=bench.record(same_start), drawn=after)
    if cause_is_found(evidence):
        return Pair(setting, evidence, judge(evidence))
    evidence = _with_twin(bench, setting, evidence, Precision.NATIVE)
    full: Evidence | None = None
    notes: list[str] = []
    if before.coarse and bench.plan.precision == "both":
        full, notes = _compare_in_float32(bench, setting, drawn=evidence.drawn is not None)
    bench.on_event(Event(Stage.JUDGE))
    return Pair(setting, evidence, judge(evidence, full), full, notes)


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
                job = setting.job(role, f"-{precision.value}", precision=precision, start=start)
                sides.append(bench.record(job))
                start = str(bench.endings[job.name].folder) if drawn else None
        except Settled as settled:
            why = why or f"{'migrated' if sides else 'original'} program: {settled.says}"
            continue
        if sides[0].coarse:
            continue
        evidence = Evidence(sides[0], sides[1])
        try:
            return _with_twin(bench, setting, evidence, precision), []
        except Settled:
            return evidence, ["the noise twin does not run in float32"]
    return None, [f"the program could not be computed in float32 ({why or 'it casts by itself'})"]
