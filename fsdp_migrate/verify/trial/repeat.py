"""What another run of the original tells: how far rounding carries, and whether it does the same
every time. If not, a difference says nothing."""

from __future__ import annotations

import dataclasses

from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.gate import AMPLIFIES, Gate, Status
from fsdp_migrate.verify.compare.gates.training import horizon
from fsdp_migrate.verify.compare.judge import Judgement, judge
from fsdp_migrate.verify.launch.job import Job
from fsdp_migrate.verify.report.model import Verdict
from fsdp_migrate.verify.trial.bench import Bench, Settled

# What a program is made of does not change from run to run.
_STRUCTURE = frozenset(
    {
        *("ran", "recorded", "names", "optimizer-alive", "placement", "gradients-present"),
        *("moves", "units", "collectives"),
    }
)
_NUMBERS = frozenset(
    {
        *("first-loss", "clipping", "gradient", "update", "trajectory", "evaluation"),
        *("parameters", "left", "last", "last-evaluation", "buffers"),
    }
)

_REMEDIES = {
    "start": "the weights are drawn from a seed that changes",
    "inputs": "the data, or the seed of its sampler, changes",
    "random": "random numbers are seeded from the clock, or drawn a number of times that changes",
}


def parts_for_twins(judgement: Judgement) -> frozenset[str]:
    """The parts of a judgement without twins in which a twin may change something: not where all
    passes, since it only widens what is allowed, nor where nothing is open but what it does not
    touch."""
    return frozenset(
        gate.part
        for gate in judgement.gates
        if gate.status not in (Status.PASS, Status.COST)
        and not (gate.status in (Status.FAIL, Status.NOTE) and gate.key in _STRUCTURE)
    )


def require_repeatable(bench: Bench, job: Job, evidence: Evidence, judgement: Judgement) -> None:
    """Run the original again, as it is, where that may explain why a judgement is no pass.

    Where a twin that went along shows that the original does the same every time, and for what no
    second run changes, there is no such run.

    Raises:
        Settled: the original differs from itself in the same way.
    """
    failure = judgement.first_failure
    if failure is not None and _went_along(evidence) and horizon(evidence) == evidence.steps:
        return
    if failure is None and not _went_along(evidence):
        failure = next((gate for gate in judgement.gates if gate.hint == AMPLIFIES), None)
    if failure is None or failure.key in _STRUCTURE:
        return
    again = Evidence(evidence.before, bench.record(job))
    found = {gate.key: gate for gate in judge(again).gates if _differs(gate)}
    telling = {failure.key, *(_REMEDIES if failure.key in _NUMBERS else ())}
    if not telling & found.keys():
        return
    named = [found[key] for key in (*_REMEDIES, failure.key) if key in found]
    titles = ", ".join(dict.fromkeys(gate.title for gate in named))
    says = f"the original, run twice, differs from itself: {titles} ({named[0].says})"
    hint = _REMEDIES.get(named[0].key, "")
    gate = dataclasses.replace(
        named[0], key="repeats", title="the original repeats itself", status=Status.VOID
    )
    gate = dataclasses.replace(gate, hint=": ".join(filter(None, ("fix its seed", hint))))
    raise Settled(Verdict.INCONCLUSIVE, says, Judgement((gate,)))


def _differs(gate: Gate) -> bool:
    return gate.status is Status.FAIL or (gate.key == "random" and gate.status is Status.NOTE)


def _went_along(evidence: Evidence) -> bool:
    """Whether the twin, an original that was run again, saw the same data and random numbers to the
    end."""
    return all(
        twin is not None
        and (a.random, a.inputs, a.batches) == (twin.random, twin.inputs, twin.batches)
        for _, a, _, twin in evidence.pairs()
    )
