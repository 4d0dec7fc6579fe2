"""The steps after the first: does it stay together, and does everything train?"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fsdp_migrate.verify.compare.coverage import NothingShared, listed, pair
from fsdp_migrate.verify.compare.envelope import ROUNDING, Judged, beyond, gap, judge, worst
from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.gate import Gate, Question, plural
from fsdp_migrate.verify.compare.gates.first_step import (
    gradient_ceiling,
    gradient_gap,
    loss_gap,
    loss_scale,
    norm_gap,
    norms,
)
from fsdp_migrate.verify.compare.recording import Recording, Step

_FEW = 3
"""Below this many steps, slow effects (a lost zero_grad, a schedule) cannot show."""


@dataclass(frozen=True)
class Row:
    """One step of the table: losses and how far apart they may be, both absolute."""

    step: int
    before: float
    after: float
    difference: float
    allowed: float
    twin: float | None
    norms: tuple[float, float] | None = None
    """The gradient norm that the first clip call of each side returned."""


def losses(evidence: Evidence) -> list[Judged]:
    """Relative loss difference of every step against the noise envelope so far."""
    scale = loss_scale(evidence)
    found: list[Judged] = []
    noise = 0.0
    for n, a, b, twin in evidence.pairs():
        if twin is not None:
            noise = max(noise, loss_gap(a, twin, scale))
        floor = evidence.floors.loss if n else evidence.floors.first_loss
        found.append(
            judge(
                loss_gap(a, b, scale),
                floor=floor,
                twin=noise if twin is not None else None,
                where=f"loss, step {n + 1}",
                ceiling=evidence.floors.ceiling,
            )
        )
    return found


def rows(evidence: Evidence) -> list[Row]:
    """The table of losses."""
    table = []
    for judged, (n, a, b, twin) in zip(losses(evidence), evidence.pairs(), strict=True):
        size = abs(a.loss)
        table.append(
            Row(
                n + 1,
                a.loss,
                b.loss,
                abs(a.loss - b.loss),
                judged.allowed * size,
                abs(a.loss - twin.loss) if twin is not None else None,
                _first_norms(a, b),
            )
        )
    return table


def _first_norms(a: Step, b: Step) -> tuple[float, float] | None:
    mine, theirs = norms(a), norms(b)
    return (mine[0][0], theirs[0][0]) if mine and theirs else None


def _later(evidence: Evidence) -> list[Judged]:
    """Losses, norms and gradients of every step after the first against the noise so far."""
    judged = losses(evidence)[1:]
    floors = evidence.floors
    norm_ceiling = gradient_ceiling(evidence, floors.ceiling)
    ceiling = gradient_ceiling(evidence, floors.gradient_ceiling)
    norm_noise = gradient_noise = 0.0
    for n, a, b, twin in evidence.pairs():
        where = f"step {n + 1}"
        norm = norm_gap(a, b)
        if twin is not None:
            norm_noise = max(norm_noise, norm_gap(a, twin) or 0.0)
            gradient_noise = max(gradient_noise, gradient_gap(a.gradients, twin.gradients))
        if n == 0:
            continue
        if norm is not None:
            judged.append(
                judge(
                    norm,
                    floor=floors.norm,
                    twin=norm_noise if twin is not None else None,
                    where=f"gradient norm, {where}",
                    ceiling=norm_ceiling,
                )
            )
        judged.append(
            judge(
                gradient_gap(a.gradients, b.gradients),
                floor=floors.gradient,
                twin=gradient_noise if twin is not None else None,
                where=f"gradient, {where}",
                ceiling=ceiling,
            )
        )
    return judged


def horizon(evidence: Evidence) -> int:
    """How many steps can be judged: later, noise alone goes beyond what may be allowed."""
    judged = [*losses(evidence), *_later(evidence), *_evaluated(evidence)]
    beyond_it = [_step_of(j) for j in judged if j.hopeless]
    return min(beyond_it, default=evidence.steps + 1) - 1


def same_trajectory(evidence: Evidence) -> Gate:
    """Losses, norms and gradients of all later steps stay within the noise envelope."""
    asked = Question("trajectory", "later steps")
    judged = _later(evidence)
    if not judged:
        return asked.note("a single step: nothing later to compare")
    hopeless = [j for j in judged if j.hopeless]
    told = min(map(_step_of, hopeless), default=math.inf)
    wrong = [j for j in judged if not j.ok and _step_of(j) < told]
    if wrong:
        first = min(wrong, key=_step_of)
        says = f"first difference in the {first.where}"
        hint = "zero_grad, a schedule, buffers, or evaluation between steps changes what follows"
        details = beyond(wrong)
        return asked.judge(first, says, hint, ok=False, step=_step_of(first), details=details)
    shown = min(hopeless, key=_step_of) if hopeless else worst(judged)
    few = evidence.steps < _FEW
    says = f"worst: {shown.where}" + (f"; only {plural(evidence.steps, 'step')}" if few else "")
    details = ("fewer than three steps: a lost zero_grad would not show",) * few
    return asked.judge(shown, says, ok=True, details=details)


_STALE = (
    "evaluation sees other weights: averages, or those of an earlier forward. After a forward "
    "without backward both FSDPs leave the root gathered; what is changed then is not seen by the "
    "next one, in the original as well"
)


def _step_of(judged: Judged) -> int:
    return int(judged.where.rpartition(" ")[2])


def same_evaluation(evidence: Evidence) -> Gate | None:
    """Forwards without gradients give the same outputs. None where there were none.

    FSDP2 leaves the root's parameters gathered after such a forward: weights that are changed then
    (an average swapped in) do not take part in the next one.
    """
    asked = Question("evaluation", "evaluation outputs")
    judged = _evaluated(evidence)
    if not judged:
        return None
    hopeless = [j for j in judged if j.hopeless]
    shown = hopeless[0] if hopeless and all(j.ok for j in judged) else worst(judged)
    says = f"{plural(len(judged), 'evaluation forward')}, worst before {shown.where}"
    step = None
    if not shown.ok:
        first = next(j for j in judged if not j.ok)
        says, step = f"other outputs in evaluation before {first.where}", _step_of(first)
    return asked.judge(shown, says, _STALE, ok=shown.ok, step=step)


def _evaluated(evidence: Evidence) -> list[Judged]:
    """Outputs of every evaluation forward against the noise so far."""
    judged: list[Judged] = []
    noise = 0.0
    for n, a, b, twin in evidence.pairs():
        if twin is not None:
            noise = max(noise, *outputs_apart(a, twin), 0.0)
        judged += [
            judge(
                apart,
                floor=10 * evidence.floors.loss,
                twin=noise if twin is not None else None,
                where=f"step {n + 1}",
                ceiling=evidence.floors.ceiling,
            )
            for apart in outputs_apart(a, b)
        ]
    return judged


def outputs_apart(a: Step, b: Step) -> list[float]:
    """Relative difference of the outputs of each evaluation forward on each rank."""
    found = []
    for mine, theirs in zip(a.evaluation_outputs, b.evaluation_outputs, strict=True):
        for (count, total, squares), (_, other, power) in zip(mine, theirs, strict=False):
            if count:
                size = math.sqrt(abs(squares) * count) if math.isfinite(squares) else 0.0
                found.append(max(gap(total, other, scale=size), gap(squares, power)))
    return found


def all_move(evidence: Evidence) -> Gate:
    """Every parameter that the original's optimizer changes is changed after the migration."""
    asked = Question("moves", "parameters moved")
    moved = _moved(evidence.before)
    paired = pair(moved, _moved(evidence.after))
    if isinstance(paired, NothingShared):
        return asked.fails(str(paired))
    if not any(clearly for clearly, _ in moved.values()):
        return asked.void("no parameter moves in the original")
    # Where the gradient is rounding noise, rounding also decides whether anything moves.
    certain = {n: p for n, p in paired.both.items() if evidence.undetermined.get(n, 0.0) < 1.0}
    stuck = [name for name, (a, b) in certain.items() if a[0] and not b[1]]
    loose = [name for name, (a, b) in certain.items() if b[0] and not a[1]]
    if stuck or loose:
        says = (
            f"{plural(len(stuck), 'parameter')} stay as they were: {listed(stuck)}"
            if stuck
            else f"{plural(len(loose), 'parameter')} move that did not before: {listed(loose)}"
        )
        return asked.fails(says)
    still = [name for name, (a, _) in paired.both.items() if not a[1]]
    count = len(paired.both) - len(still)
    details = (f"does not move in either: {listed(still)}",) if still else ()
    trained = plural(len(paired.both), "trained parameter")
    says = f"{count} of {trained} moved" if still else f"all {trained} moved"
    return asked.passes(says, details=details)


def _moved(recording: Recording) -> dict[str, tuple[bool, bool]]:
    """For each parameter that an optimizer holds: whether it moved clearly, and whether at all."""
    start = recording.init.params.whole
    held = recording.owned() & recording.trainable
    moved = dict.fromkeys((name for name in start if name in held), (False, False))
    for snapshot in recording.after:
        for name, sketch in snapshot.params.whole.items():
            if name in moved and sketch.projections != start[name].projections:
                rounding = ROUNDING.get(recording.parameters[name].dtype, ROUNDING["float32"])
                far = start[name].distance(sketch) > 4 * rounding * start[name].norm
                moved[name] = (moved[name][0] or far, True)
    return moved
