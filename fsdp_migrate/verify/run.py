"""Train the original, its twin and the migrated program, and judge."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fsdp_migrate.verify.compare.envelope import ROUNDING
from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.gate import plural
from fsdp_migrate.verify.compare.gates.shape import misplaced
from fsdp_migrate.verify.compare.gates.training import rows
from fsdp_migrate.verify.compare.judge import Judgement, decided, exact_gates, judge
from fsdp_migrate.verify.compare.load import LoadError, load, load_parameters
from fsdp_migrate.verify.compare.recording import Recording
from fsdp_migrate.verify.events import Event, Role, Stage, ignore
from fsdp_migrate.verify.inject.config import Noise
from fsdp_migrate.verify.launch import baseline
from fsdp_migrate.verify.launch.outcome import End, Outcome
from fsdp_migrate.verify.launch.start import train
from fsdp_migrate.verify.launch.watch import Patience
from fsdp_migrate.verify.plan import Plan, PlanError
from fsdp_migrate.verify.report.model import Report, Verdict

_STEADY_S = 30.0
_SLOWER = 10.0
_ENOUGH_STEPS = 3


def verify(plan: Plan, *, on_event: Callable[[Event], None] = ignore) -> Report:
    """Run both versions of a program and answer whether they train the same.

    Programs are executed, in scratch copies of their trees; nothing is written into the trees.
    Takes as long as two or three runs of the program: the noise twin is skipped when an exact
    question already found the cause.

    Raises :class:`PlanError` when a run cannot be started.
    """
    started = time.monotonic()
    if plan.keep is not None:
        try:
            plan.keep.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PlanError(f"{plan.keep} cannot be used: {error}") from None
    room = Path(tempfile.mkdtemp(prefix="verify-", dir=plan.keep))
    try:
        work = _Work(plan, room, on_event)
        report = work.report(time.monotonic() - started)
    finally:
        if plan.keep is None:
            shutil.rmtree(room, ignore_errors=True)
    return report


@dataclass
class _Work:
    """The runs of one verification, as far as they have got."""

    plan: Plan
    room: Path
    on_event: Callable[[Event], None]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    recordings: dict[str, Recording] = field(default_factory=dict)
    verdict: Verdict = Verdict.INCONCLUSIVE
    says: str = ""
    judgement: Judgement | None = None

    def __post_init__(self) -> None:
        self._decide()

    def _decide(self) -> None:
        before = self._run(Role.BEFORE)
        if before is None or self._run(Role.AFTER) is None:
            return
        evidence = self._evidence()
        if self.plan.twin and not decided(exact_gates(evidence)):
            noise = Noise(amplitude=ROUNDING[before.precision], seed=1)
            if self._run(Role.TWIN, noise) is None:
                return
            evidence = self._evidence()
        self.on_event(Event(Stage.JUDGE))
        self.judgement = judge(evidence)
        failure, void = self.judgement.first_failure, self.judgement.first_void
        if failure is not None:
            self.verdict, self.says = Verdict.DIFFERENT, f"{failure.title}: {failure.says}"
        elif void is not None:
            self.verdict, self.says = Verdict.INCONCLUSIVE, f"{void.title}: {void.says}"
        else:
            self.verdict = Verdict.SAME
            passed = len(self.judgement.gates)
            ranks = plural(before.world, "rank")
            self.says = f"{plural(evidence.steps, 'step')}, {ranks}, {passed} checks"

    def _evidence(self) -> Evidence:
        found = self.recordings
        return Evidence(found["before"], found["after"], found.get("twin"))

    def _run(self, role: Role, noise: Noise | None = None) -> Recording | None:
        """Train and load one version; None when that already settles the verdict."""
        outcome = self.outcomes[role.value] = self._train(role, noise)
        if outcome.end is End.FINISHED:
            try:
                self.recordings[role.value] = load(outcome.folder)
            except LoadError as error:
                self.says = f"the records of the {_NAMES[role]} cannot be used: {error}"
                return None
            return self.recordings[role.value]
        self.verdict = _VERDICTS.get((role, outcome.end), Verdict.INCONCLUSIVE)
        self.says = outcome.says if role is not Role.TWIN else f"noise twin: {outcome.says}"
        if role is Role.AFTER:
            self._explain(outcome)
        return None

    def _train(self, role: Role, noise: Noise | None) -> Outcome:
        cache = self.plan.cache if role is not Role.AFTER else None
        name = baseline.key(self.plan, role, noise) if cache is not None else ""
        if cache is not None and (kept := baseline.find(cache, name)) is not None:
            return kept
        outcome = train(
            self.plan,
            role,
            room=self.room / role.value,
            patience=self._patience(role),
            noise=noise,
            on_event=self.on_event,
        )
        if cache is not None:
            baseline.keep(cache, name, outcome)
        return outcome

    def _explain(self, outcome: Outcome) -> None:
        """A parameter outside of every unit is a frequent reason why a migrated program fails."""
        reason = misplaced(self.recordings["before"].parameters, load_parameters(outcome.folder))
        if reason is not None:
            self.judgement = Judgement((reason,))
            self.says = f"{self.says}; {reason.title}: {reason.says}"

    def _patience(self, role: Role) -> Patience:
        limit = self.plan.timeout
        if role is Role.BEFORE:
            return Patience(start=limit, steady=limit)
        slowest = self.outcomes["before"].slowest_gap
        return Patience(start=limit, steady=min(limit, max(_STEADY_S, _SLOWER * slowest)))

    # --- the report ------------------------------------------------------------------------------

    def report(self, seconds: float) -> Report:
        """Everything known, as the answer."""
        plan, before = self.plan, self.recordings.get("before")
        gates = self.judgement.gates if self.judgement else ()
        compared = {"before", "after"} <= set(self.recordings)
        return Report(
            verdict=self.verdict,
            says=self.says,
            program=" ".join([plan.title, *plan.args]),
            before=str(plan.before),
            after=str(plan.after),
            setting=self._setting(before),
            gates=gates,
            rows=tuple(rows(self._evidence())) if compared else (),
            outcomes=self.outcomes,
            patches=self._all("patches"),
            notes=self._notes(),
            limits=self._limits(before) if compared else (),
            facts=self._facts(before),
            seconds=seconds,
            kept=str(self.room) if plan.keep is not None else None,
        )

    def _setting(self, before: Recording | None) -> str:
        plan = self.plan
        if before is None:
            return f"{plan.nproc} ranks, at most {plan.max_steps} steps, seed {plan.seed}"
        words = [f"{before.world} ranks" if before.world > 1 else "1 rank", before.backend]
        words += [before.device, before.precision, f"{len(before.steps)} steps"]
        return ", ".join([*words, f"seed {plan.seed}", f"torch {before.torch}"])

    def _all(self, what: str) -> tuple[str, ...]:
        found = [
            text for recording in self.recordings.values() for text in getattr(recording, what)
        ]
        return tuple(dict.fromkeys(found))

    def _notes(self) -> tuple[str, ...]:
        notes = list(self._all("notes"))
        for role, outcome in self.outcomes.items():
            notes += [f"{role}: {note}" for note in outcome.notes]
        if "after" in self.recordings and "twin" not in self.recordings:
            notes.append("the noise twin was not run: tolerances are the bare floors")
        for gate in self.judgement.gates if self.judgement else ():
            if gate.details and gate.status.value == "pass":
                notes += [f"{gate.title}: {detail}" for detail in gate.details]
        return tuple(notes)

    def _limits(self, before: Recording | None) -> tuple[str, ...]:
        limits = []
        if before is None:
            return ()
        if before.device == "cpu":
            limits.append("GPU speed and memory, prefetching, streams, NCCL: this ran on CPUs")
        if before.world == 1:
            limits.append("sharding, reductions and collectives: there was one rank")
        if len(before.steps) < _ENOUGH_STEPS:
            limits.append("effects that need three steps or more (zero_grad, schedules)")
        limits.append("saving and loading of checkpoints")
        return tuple(limits)

    def _facts(self, before: Recording | None) -> dict[str, object]:
        plan = self.plan
        facts: dict[str, object] = {
            "script": plan.script,
            "args": list(plan.args),
            "nproc": plan.nproc,
            "max_steps": plan.max_steps,
            "seed": plan.seed,
            "python": plan.python,
        }
        if before is not None:
            facts |= {
                "torch": before.torch,
                "device": before.device,
                "backend": before.backend,
                "precision": before.precision,
            }
        return facts


_NAMES = {Role.BEFORE: "original", Role.AFTER: "migrated run", Role.TWIN: "noise twin"}

_VERDICTS = {
    (Role.BEFORE, End.CRASHED): Verdict.BEFORE_FAILED,
    (Role.BEFORE, End.HUNG): Verdict.BEFORE_FAILED,
    (Role.AFTER, End.CRASHED): Verdict.AFTER_FAILED,
    (Role.AFTER, End.HUNG): Verdict.AFTER_HUNG,
}
