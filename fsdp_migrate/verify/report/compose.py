"""Put the results of a verification into a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.verify import simulate
from fsdp_migrate.verify.compare.coverage import listed
from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.exact import differences
from fsdp_migrate.verify.compare.gate import plural
from fsdp_migrate.verify.compare.gates.state import final_parameters
from fsdp_migrate.verify.compare.gates.training import rows
from fsdp_migrate.verify.compare.judge import Judgement
from fsdp_migrate.verify.compare.not_executed import changed_and_not_executed
from fsdp_migrate.verify.compare.observed import together
from fsdp_migrate.verify.compare.recording import Recording
from fsdp_migrate.verify.plan import Plan
from fsdp_migrate.verify.report.model import Apart, Report, Traffic, Verdict, World
from fsdp_migrate.verify.settings import ALL_STEPS
from fsdp_migrate.verify.trial.bench import Bench
from fsdp_migrate.verify.trial.pair import Pair

_ENOUGH_STEPS = 3
_MOST_PARAMETERS = 10
_MOST_BLOCKS = 10
_SIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Answer:
    """What was decided, and from which comparisons: one per number of ranks, in the order asked.

    ``judgement`` is that of the comparison that decided, whose jobs are named with ``label``.
    """

    verdict: Verdict
    says: str
    pairs: list[Pair]
    judgement: Judgement | None
    label: str = ""


def compose(bench: Bench, answer: Answer, *, seconds: float) -> Report:
    """Everything known, as the answer."""
    plan, pairs = bench.plan, answer.pairs
    # Several numbers of ranks: shown is the comparison that decided.
    decided = [pair for pair in pairs if pair.setting.label == answer.label]
    first = decided[0] if decided else None
    before = bench.recordings.get(f"before{answer.label}")
    compared = f"after{answer.label}" in bench.recordings
    not_executed = _not_executed(bench)
    return Report(
        verdict=answer.verdict,
        says=answer.says,
        simulated=bench.runner.simulate,
        program=" ".join([plan.title, *plan.args]),
        before=str(plan.before),
        after=str(plan.after),
        setting=_setting(bench, before),
        gates=answer.judgement.gates if answer.judgement else (),
        rows=tuple(rows(first.evidence.until(first.judged))) if first else (),
        worlds=_worlds(pairs[:: len(plan.variants)]) if plan.worlds else (),
        traffic=_traffic(first.evidence) if first else (),
        held=_held(first.evidence) if first else None,
        parameters=_parameters(first.numbers) if first else (),
        endings=bench.endings,
        patches=_all(bench, "patches"),
        notes=_notes(bench, pairs, answer.judgement),
        limits=(
            _limits(plan, before, first, not_executed) if compared and before is not None else ()
        ),
        not_executed=not_executed,
        facts=_facts(bench, before),
        seconds=seconds,
        observed=together(recording.observed for recording in bench.recordings.values()),
        kept=str(bench.room) if plan.keep is not None else None,
    )


def _not_executed(bench: Bench) -> tuple[str, ...]:
    """The changed blocks of the migrated program that no run came by, those of files that stood in
    the original first. Files that no run imported are left out."""
    executed: dict[str, set[int]] = {}
    for recording in bench.recordings.values():
        for name, lines in recording.executed.items():
            executed.setdefault(name, set()).update(lines)
    found: dict[bool, list[str]] = {False: [], True: []}
    for name in sorted(executed):
        before, after = (tree / name for tree in (bench.plan.before, bench.plan.after))
        only_after = not before.is_file()
        old = b"" if only_after else before.read_bytes()
        for first, last in changed_and_not_executed(old, after.read_bytes(), executed[name]):
            place = f"{name}:{first}" if first == last else f"{name}:{first}-{last}"
            found[only_after].append(place)
    return (*found[False], *found[True])


def _traffic(evidence: Evidence) -> tuple[Traffic, ...]:
    _, a, b, _ = evidence.pairs()[-1]
    mine, theirs = a.collectives[0], b.collectives[0]
    kinds = sorted({*mine, *theirs})
    nothing = (0, 0)
    return tuple(Traffic(*k, mine.get(k, nothing), theirs.get(k, nothing)) for k in kinds)


def _held(evidence: Evidence) -> tuple[tuple[int, ...], tuple[int, ...]]:
    def bytes_of(recording: Recording) -> tuple[int, ...]:
        return tuple(
            sum(p.held[rank] * _SIZES.get(p.dtype, 4) for p in recording.parameters.values())
            for rank in range(recording.world)
        )

    return bytes_of(evidence.before), bytes_of(evidence.after)


def _parameters(evidence: Evidence) -> tuple[Apart, ...]:
    judged, _ = final_parameters(evidence)
    worst = sorted(judged, key=lambda j: -j.excess)[:_MOST_PARAMETERS]
    return tuple(Apart(j.where, j.measured, j.allowed, j.twin) for j in worst)


def _worlds(pairs: list[Pair]) -> tuple[World, ...]:
    """One line per number of ranks; parameters beside those of the first line's original."""
    found = []
    for pair in pairs:
        a, b = pair.evidence.before, pair.evidence.after
        table = rows(pair.evidence)
        found.append(
            World(
                ranks=a.world,
                first=(table[0].before, table[0].after),
                last=(table[-1].before, table[-1].after),
                loss_apart=max(row.difference for row in table),
                parameters_apart=_largest(a, b),
                from_first=_largest(pairs[0].evidence.before, b),
                ok=pair.judgement.first_failure is None and pair.judgement.first_void is None,
            )
        )
    return tuple(found)


def _largest(a: Recording, b: Recording) -> float | None:
    """Largest absolute difference of any final parameter; None where values were not written."""
    found = differences(a, b)
    return max(apart.largest for apart in found.values()) if found else None


def _setting(bench: Bench, before: Recording | None) -> str:
    plan = bench.plan
    if before is None:
        return f"{plural(plan.nproc, 'rank')}, seed {plan.seed}"
    words = [plural(before.world, "rank"), before.backend]
    words += [
        "CPU simulation of CUDA" if before.simulated else before.device,
        before.precision,
        f"{len(before.steps)} steps",
    ]
    return ", ".join([*words, f"seed {plan.seed}", f"torch {before.torch}"])


def _all(bench: Bench, what: str) -> tuple[str, ...]:
    found = [text for recording in bench.recordings.values() for text in getattr(recording, what)]
    return tuple(dict.fromkeys(found))


def _notes(bench: Bench, pairs: list[Pair], judgement: Judgement | None) -> tuple[str, ...]:
    notes = list(_all(bench, "notes"))
    for name, ending in bench.endings.items():
        notes += [f"{name}: {note}" for note in ending.notes]
    for pair in pairs:
        notes += pair.notes
        if pair.evidence.twin is None and not bench.plan.twin:
            notes.append("the noise twin was not run: tolerances are the bare floors")
    for gate in judgement.gates if judgement else ():
        if gate.details and gate.status.value == "pass":
            notes += [f"{gate.title}: {detail}" for detail in gate.details]
    return tuple(dict.fromkeys(notes))


def _limits(
    plan: Plan, before: Recording, pair: Pair | None, not_executed: tuple[str, ...]
) -> tuple[str, ...]:
    limits: list[str] = []
    if pair is not None and pair.evidence.after.imported:
        left = sorted(pair.evidence.changed - pair.evidence.after.imported)
        if left:
            limits.append(f"changed code that this run did not import: {listed(left)}")
    limits += [f"{place} was changed and never ran" for place in not_executed[:_MOST_BLOCKS]]
    if len(not_executed) > _MOST_BLOCKS:
        limits.append(f"{len(not_executed) - _MOST_BLOCKS} more blocks were changed and never ran")
    if before.simulated:
        limits.append(simulate.LIMITS)
    elif before.device == "cpu":
        limits.append("GPU speed and memory, prefetching, streams, NCCL: this ran on CPUs")
    if before.world == 1 and not plan.worlds:
        limits.append("sharding, reductions and collectives: there was one rank")
    limits += _beyond(before, pair)
    if len(before.steps) < _ENOUGH_STEPS:
        limits.append("effects that need three steps or more (zero_grad, schedules)")
    if plan.resume is None:
        limits.append("resuming from checkpoints (--resume-check)")
    return tuple(limits)


def _beyond(before: Recording, pair: Pair | None) -> Iterator[str]:
    """What of the program was not judged."""
    steps, rest = len(before.steps), before.rest
    if rest is None or not rest.ended:
        yield f"anything after step {steps} (--steps all, --to-the-end)"
    elif rest.steps > steps:
        yield f"what is computed in steps {steps + 1} to {rest.steps}: they ran unrecorded"
    if pair is not None and pair.told is not None:
        yield f"numbers after step {pair.told}: rounding alone carries them too far"


def _facts(bench: Bench, before: Recording | None) -> dict[str, object]:
    plan = bench.plan
    facts: dict[str, object] = {
        "script": plan.script,
        "args": list(plan.args),
        "nproc": [plan.nproc, *plan.worlds],
        "max_steps": plan.max_steps if plan.max_steps < ALL_STEPS else "all",
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
