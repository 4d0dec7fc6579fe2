"""What follows the last step: evaluations, changed weights, the exit status."""

from __future__ import annotations

from dataclasses import dataclass

from fsdp_migrate.verify.compare.coverage import listed
from fsdp_migrate.verify.compare.envelope import FACTOR, Judged, judge, worst
from fsdp_migrate.verify.compare.evidence import Evidence, distances
from fsdp_migrate.verify.compare.gate import Gate, Question, plural
from fsdp_migrate.verify.compare.gates.state import estimated
from fsdp_migrate.verify.compare.gates.training import outputs_apart
from fsdp_migrate.verify.compare.recording import Recording, Rest, Step, Tensors


@dataclass(frozen=True)
class _Rests:
    """What both sides and the twin did after the last step."""

    before: Rest
    after: Rest
    twin: Rest | None


def _rests(evidence: Evidence) -> _Rests | None:
    """None where a side has not been recorded so far."""
    before, after = evidence.before.rest, evidence.after.rest
    if before is None or after is None:
        return None
    return _Rests(before, after, evidence.twin.rest if evidence.twin is not None else None)


def same_end(evidence: Evidence) -> Gate | None:
    """Both come to their end after the same number of steps, with the same exit status.

    None where the program was stopped: it went on after the steps that are judged.
    """
    asked = Question("ending", "end of the program")
    rests = _rests(evidence)
    if rests is None or not (rests.before.ended or rests.after.ended):
        return None
    a, b = rests.before, rests.after
    if (a.steps, a.ended) != (b.steps, b.ended):
        counts = [plural(x.steps, "step") + ("" if x.ended else " and more") for x in (a, b)]
        says = f"{counts[0]} before, {counts[1]} after"
        return asked.fails(says, "the loop ends elsewhere, or an epoch has another length")
    if a.status != b.status:
        return asked.fails(f"exit status {a.status} before, {b.status} after")
    return asked.passes(f"after {plural(a.steps, 'step')}, exit status {a.status}")


def same_remainder(evidence: Evidence) -> Gate | None:
    """After the last step the same data enters the model, with its modules in the same modes."""
    asked = Question("remainder", "after the last step")
    moments = _moments(evidence)
    if moments is None:
        return None
    a, b, twin = moments
    for name, what in _COUNTED.items():
        counts = [[len(values) for values in getattr(side, name)] for side in (a, b)]
        if counts[0] != counts[1]:
            return asked.fails(f"{sum(counts[0])} {what} before, {sum(counts[1])} after")
    for name in ("modes", "evaluation_modes"):
        for rank, (x, y) in enumerate(zip(getattr(a, name), getattr(b, name), strict=True)):
            for (_, mine, kept), (_, theirs, other) in zip(x, y, strict=False):
                if kept != other:
                    says = f"rank {rank}: {mine} modules in evaluation mode before, {theirs} after"
                    return asked.fails(says, "model.train() or model.eval() was lost or moved")
    for name, what in _ENTERING.items():
        mine, theirs = getattr(a, name), getattr(b, name)
        if mine == theirs:
            continue
        if name != "batches" and (twin is None or getattr(twin, name) != mine):
            # What noise changes as well was computed with the model; without a twin it may be.
            return asked.note(f"what enters {what} follows from the model's own numbers")
        return asked.fails(f"other data enters {what}")
    seen = any(map(len, (*a.inputs, *a.evaluation_inputs)))
    return asked.passes("the same modes and data" if seen else "nothing enters the model")


_COUNTED = {
    "losses": "backward calls",
    "inputs": "forwards",
    "evaluation_inputs": "evaluation forwards",
}
_ENTERING = {
    "batches": "the loop",
    "inputs": "the model",
    "evaluation_inputs": "the model in evaluation",
}


def _moments(evidence: Evidence) -> tuple[Step, Step, Step | None] | None:
    rests = _rests(evidence)
    if rests is None or rests.before.moment is None or rests.after.moment is None:
        return None
    # With another number of steps, other gates speak of it.
    if len(evidence.before.steps) != len(evidence.after.steps):
        return None
    twin = rests.twin.moment if rests.twin is not None else None
    return rests.before.moment, rests.after.moment, twin


def same_left_weights(evidence: Evidence) -> Gate | None:
    """No weights are changed after the last step that were not before."""
    asked = Question("left", "weights after the last step")
    rests = _rests(evidence)
    if rests is None or rests.before.models is None or rests.after.models is None:
        return None
    twin = rests.twin.models if rests.twin is not None else None
    mine, theirs = rests.before.models.params, rests.after.models.params
    judged, says = estimated(evidence, mine, theirs, twin.params if twin is not None else None)
    return _weights(asked, judged, says, "they are changed, loaded or averaged otherwise")


def same_last_weights(evidence: Evidence) -> Gate | None:
    """The models at the end of programs that went on unrecorded."""
    asked = Question("last", "final parameters, at the end")
    rests = _rests(evidence)
    if rests is None or rests.before.last is None or rests.after.last is None:
        return None
    mine, theirs = rests.before.last.params, rests.after.last.params
    shaken = rests.twin.last.params if rests.twin is not None and rests.twin.last else None
    if shaken is not None and _is_lost(evidence.before, mine, shaken):
        return asked.note("not compared: by then rounding alone carries them too far apart")
    judged, says = estimated(evidence, mine, theirs, shaken)
    return _weights(asked, judged, says, "something differs in the steps that were not recorded")


def _is_lost(before: Recording, mine: Tensors, shaken: Tensors) -> bool:
    """Whether noise alone makes up more than a few percent of the way that parameters went."""
    way, noise = distances(before.init.params, mine), distances(mine, shaken)
    names = sorted(before.trainable)
    moved, strayed = (
        found.only(names) if hasattr(found, "only") else None for found in (way, noise)
    )
    if moved is None or strayed is None:
        return True
    return FACTOR * strayed.together * strayed.norm > _LOST * moved.together * moved.norm


_LOST = 0.05


def _weights(asked: Question, judged: list[Judged], says: str, hint: str) -> Gate:
    if not judged:
        return asked.void(says)
    shown = worst(judged)
    wrong = [j.where for j in judged if not j.ok]
    says = f"{says} of {plural(len(judged), 'parameter')}"
    if wrong:
        says = f"{len(wrong)} of {plural(len(judged), 'parameter')} differ: {listed(wrong)}"
    return asked.judge(shown, says, hint, ok=not wrong)


def same_last_evaluation(evidence: Evidence) -> Gate | None:
    """Forwards without gradients after the last step give the same outputs."""
    asked = Question("last-evaluation", "evaluation after the last step")
    moments = _moments(evidence)
    if moments is None:
        return None
    a, b, twin = moments
    noise = max(outputs_apart(a, twin), default=0.0) if twin is not None else None
    floors = evidence.floors
    judged = [
        judge(apart, floor=10 * floors.loss, twin=noise, ceiling=floors.ceiling)
        for apart in outputs_apart(a, b)
    ]
    if not judged:
        return None
    shown = worst(judged)
    return asked.judge(shown, plural(len(judged), "evaluation forward"), ok=shown.ok)
