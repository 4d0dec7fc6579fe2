"""Run jobs and load what they recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fsdp_migrate.verify.compare.gates.shape import misplaced
from fsdp_migrate.verify.compare.judge import Judgement
from fsdp_migrate.verify.compare.load import LoadError, load, load_parameters
from fsdp_migrate.verify.compare.recording import Recording
from fsdp_migrate.verify.events import Event, Role
from fsdp_migrate.verify.launch import baseline
from fsdp_migrate.verify.launch.ending import End, Ending
from fsdp_migrate.verify.launch.job import Job
from fsdp_migrate.verify.launch.start import Runner
from fsdp_migrate.verify.launch.watch import Patience
from fsdp_migrate.verify.plan import Plan
from fsdp_migrate.verify.report.model import Verdict

_STEADY_S = 30.0
_SLOWER = 10.0

NAMES = {Role.BEFORE: "original", Role.AFTER: "migrated run", Role.TWIN: "noise twin"}

_VERDICTS = {
    (Role.BEFORE, End.CRASHED): Verdict.BEFORE_FAILED,
    (Role.BEFORE, End.HUNG): Verdict.BEFORE_HUNG,
    (Role.AFTER, End.CRASHED): Verdict.AFTER_FAILED,
    (Role.AFTER, End.HUNG): Verdict.AFTER_HUNG,
}


@dataclass
class Settled(Exception):
    """A run ended in a way that leaves nothing to compare."""

    verdict: Verdict
    says: str
    judgement: Judgement | None = None


@dataclass
class Bench:
    """The runs of one verification so far, by the name of their job."""

    plan: Plan
    room: Path
    runner: Runner
    on_event: Callable[[Event], None]
    endings: dict[str, Ending] = field(default_factory=dict)
    recordings: dict[str, Recording] = field(default_factory=dict)

    def train(self, job: Job) -> Ending:
        """Run ``job``, or find the recording of an earlier verification."""
        cache = self.plan.cache if baseline.keepable(self.plan, job) else None
        name = baseline.key(self.plan, job) if cache is not None else ""
        ending = baseline.find(cache, name) if cache is not None else None
        if ending is not None:
            self.runner.adopt(ending)
        else:
            ending = self.runner.run(job, self._patience(job))
            if cache is not None:
                baseline.keep(cache, name, ending, self.plan.before)
        self.endings[job.name] = ending
        return ending

    def record(self, job: Job) -> Recording:
        """Run ``job`` and load its records.

        Raises:
            Settled: it did not finish, or its records cannot be used.
        """
        ending = self.train(job)
        if ending.end is End.FINISHED:
            try:
                recording = load(ending.folder)
            except LoadError as error:
                says = f"the records of the {NAMES[job.role]} cannot be used: {error}"
                raise Settled(Verdict.INCONCLUSIVE, says) from None
            if recording.rest is not None:
                rest = dataclasses.replace(recording.rest, status=ending.status)
                recording = dataclasses.replace(recording, rest=rest)
            self.recordings[job.name] = recording
            return recording
        verdict = _VERDICTS.get((job.role, ending.end), Verdict.INCONCLUSIVE)
        if ending.end in (End.UNRECORDED, End.DEFEATED):
            verdict = Verdict.UNRECORDED
        says = ending.says
        if verdict in (Verdict.INCONCLUSIVE, Verdict.UNRECORDED):
            says = f"{NAMES[job.role]}: {says}"
        raise Settled(verdict, says)

    def explained(self, settled: Settled, job: Job, before: Recording) -> Settled:
        """``settled`` with the reason why the migrated ``job`` failed, where one can be seen: a
        parameter outside of every unit is a frequent one."""
        ending = self.endings[job.name]
        if settled.verdict not in (Verdict.AFTER_FAILED, Verdict.AFTER_HUNG):
            return settled
        reason = misplaced(before.parameters, load_parameters(ending.folder))
        if reason is None:
            return settled
        says = f"{settled.says}; {reason.title}: {reason.says}"
        return Settled(settled.verdict, says, Judgement((reason,)))

    def _patience(self, job: Job) -> Patience:
        limit = self.plan.timeout
        gaps = [o.slowest_gap for name, o in self.endings.items() if name.startswith("before")]
        if not gaps:
            return Patience(start=limit, steady=limit)
        return Patience(start=limit, steady=min(limit, max(_STEADY_S, _SLOWER * max(gaps))))
