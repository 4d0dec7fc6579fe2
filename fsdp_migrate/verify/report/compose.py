"""Put the results of a verification into a report."""

from __future__ import annotations

from fsdp_migrate.verify.compare.gates.training import rows
from fsdp_migrate.verify.compare.judge import Judgement
from fsdp_migrate.verify.compare.recording import Recording
from fsdp_migrate.verify.report.model import Report, Verdict
from fsdp_migrate.verify.trial.bench import Bench
from fsdp_migrate.verify.trial.pair import Pair

_ENOUGH_STEPS = 3


def compose(
    bench: Bench,
    *,
    verdict: Verdict,
    says: str,
    pairs: list[Pair],
    judgement: Judgement | None,
    seconds: float,
) -> Report:
    """Everything known, as the answer. The first of ``pairs`` is the one asked for."""
    plan = bench.plan
    first = pairs[0] if pairs else None
    before = bench.recordings.get("before")
    compared = {"before", "after"} <= set(bench.recordings)
    return Report(
        verdict=verdict,
        says=says,
        program=" ".join([plan.title, *plan.args]),
        before=str(plan.before),
        after=str(plan.after),
        setting=_setting(bench, before),
        gates=judgement.gates if judgement else (),
        rows=tuple(rows(first.evidence)) if first else (),
        outcomes=bench.outcomes,
        patches=_all(bench, "patches"),
        notes=_notes(bench, pairs, judgement),
        limits=_limits(before) if compared and before is not None else (),
        facts=_facts(bench, before),
        seconds=seconds,
        kept=str(bench.room) if plan.keep is not None else None,
    )


def _setting(bench: Bench, before: Recording | None) -> str:
    plan = bench.plan
    if before is None:
        return f"{plan.nproc} ranks, at most {plan.max_steps} steps, seed {plan.seed}"
    words = [f"{before.world} ranks" if before.world > 1 else "1 rank", before.backend]
    words += [before.device, before.precision, f"{len(before.steps)} steps"]
    return ", ".join([*words, f"seed {plan.seed}", f"torch {before.torch}"])


def _all(bench: Bench, what: str) -> tuple[str, ...]:
    found = [text for recording in bench.recordings.values() for text in getattr(recording, what)]
    return tuple(dict.fromkeys(found))


def _notes(bench: Bench, pairs: list[Pair], judgement: Judgement | None) -> tuple[str, ...]:
    notes = list(_all(bench, "notes"))
    for name, outcome in bench.outcomes.items():
        notes += [f"{name}: {note}" for note in outcome.notes]
    for pair in pairs:
        notes += pair.notes
        if pair.evidence.twin is None:
            notes.append("the noise twin was not run: tolerances are the bare floors")
    for gate in judgement.gates if judgement else ():
        if gate.details and gate.status.value == "pass":
            notes += [f"{gate.title}: {detail}" for detail in gate.details]
    return tuple(dict.fromkeys(notes))


def _limits(before: Recording) -> tuple[str, ...]:
    limits = []
    if before.device == "cpu":
        limits.append("GPU speed and memory, prefetching, streams, NCCL: this ran on CPUs")
    if before.world == 1:
        limits.append("sharding, reductions and collectives: there was one rank")
    if len(before.steps) < _ENOUGH_STEPS:
        limits.append("effects that need three steps or more (zero_grad, schedules)")
    limits.append("saving and loading of checkpoints")
    return tuple(limits)


def _facts(bench: Bench, before: Recording | None) -> dict[str, object]:
    plan = bench.plan
    facts: dict[str, object] = {
        "script": plan.script,
        "args": list(plan.args),
        "nproc": plan.nproc,
        "max_steps": plan.max_steps,
        "seed": plan.seed,
        "python": plan.python,
        "launcher": plan.launcher,
    }
    if before is not None:
        facts |= {
            "torch": before.torch,
            "device": before.device,
            "backend": before.backend,
            "precision": before.precision,
        }
    return facts
