"""The first optimizer step, before differences grow: loss, clipping, gradient, update."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from fsdp_migrate.verify.compare.coverage import NothingShared, listed, pair
from fsdp_migrate.verify.compare.envelope import (
    FACTOR,
    ROUNDING,
    Judged,
    beyond,
    gap,
    judge,
    worst,
)
from fsdp_migrate.verify.compare.evidence import Distances, Evidence, distances
from fsdp_migrate.verify.compare.gate import Gate, Question, Status, plural
from fsdp_migrate.verify.compare.recording import Step, Tensors
from fsdp_migrate.verify.compare.sketch import change, length

_BIASED = 1e-7
"""Share of the whole gradient's norm below which one parameter's gradient is rounding."""


def loss_gap(a: Step, b: Step, scale: float) -> float:
    """Largest relative difference of any micro-loss on any rank."""
    return max(
        (
            gap(x, y, scale=scale)
            for mine, theirs in zip(a.losses, b.losses, strict=True)
            for x, y in zip(mine, theirs, strict=False)
        ),
        default=0.0,
    )


def gradient_ceiling(evidence: Evidence, most: float) -> float:
    """The most that noise may allow of what is measured at gradients.

    Rounding that takes one element across the kink of a ReLU changes a gradient by much and the
    loss by nothing. While losses are told apart finely, they show what other gradients would do.
    """
    if evidence.steps < _FEW:
        return most
    scale = loss_scale(evidence)
    noise = max(loss_gap(a, twin, scale) if twin else 0.0 for _, a, _, twin in evidence.pairs())
    return most if FACTOR * noise > _FINE_LOSS else math.inf


_FINE_LOSS = 1e-4
_SMALL, _APART = 0.01, 1.01  # shares: of the largest gradient, and of factors
_FEW = 3


def loss_scale(evidence: Evidence) -> float:
    """The least that a loss counts for, where it comes close to zero."""
    found = (abs(x) for rank in evidence.before.steps[0].losses for x in rank)
    return 1e-3 * max(found, default=0)


def clippings(calls: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """The times gradients were clipped, of all calls of one rank in one step.

    Scaling several groups of parameters by one and the same norm is one clipping: DTensors and
    plain tensors cannot be scaled in one call. Taking a norm alone clips nothing.
    """
    found: list[Mapping[str, object]] = []
    for call in calls:
        if call["by"] == "get_total_norm":
            continue
        one = call["by"] == "clip_grads_with_norm_"
        if one and found and dict(found[-1]) == dict(call):
            continue
        found.append(call)
    return found


def norms(step: Step) -> list[list[float]]:
    """The gradient norms by which was clipped, per rank, combined where they are partial."""
    columns = []
    ranks = [clippings(calls) for calls in step.clips]
    for number in range(min(len(rank) for rank in ranks)):
        calls = [rank[number] for rank in ranks]
        values = [float(str(call["norm"])) for call in calls if call.get("norm") is not None]
        if len(values) < len(calls):
            continue  # clip_grad_value_ returns none
        combine = str(calls[0]["combine"])
        if combine.startswith("partial:"):
            order = float(combine.removeprefix("partial:"))
            whole = (
                max(values) if math.isinf(order) else sum(v**order for v in values) ** (1 / order)
            )
            values = [whole] * len(values)
        columns.append(values)
    return columns


def norm_gap(a: Step, b: Step) -> float | None:
    """Largest relative difference of the returned norms; None when neither side returned any."""
    mine, theirs = norms(a), norms(b)
    if not mine and not theirs:
        return None
    if len(mine) != len(theirs):
        return math.inf
    return max(
        gap(x, y)
        for column, other in zip(mine, theirs, strict=True)
        for x, y in zip(column, other, strict=True)
    )


def gradient_gap(a: Tensors, b: Tensors) -> float:
    """Relative distance of all gradients together; infinite when none is in common."""
    measured = distances(a, b)
    return math.inf if isinstance(measured, NothingShared) else measured.together


def same_loss(evidence: Evidence) -> Gate:
    """The first forward gives the same losses: nothing has been updated yet."""
    asked = Question("first-loss", "loss, first step")
    _, a, b, twin = evidence.pairs()[0]
    if not any(a.losses):
        return asked.void("no loss was seen: backward was called on no scalar")
    # The same weights go through the same operations, so in 16 bits the twin, whose weights are
    # shaken by 2^-9, says nothing. GPUs may choose other kernels for parameters aligned otherwise.
    shaken = twin is not None and not (evidence.before.coarse and evidence.before.device == "cpu")
    judged = judge(
        loss_gap(a, b, 0.0),
        floor=evidence.floors.first_loss,
        twin=loss_gap(a, twin, 0.0) if twin and shaken else None,
        ceiling=evidence.floors.ceiling,
    )
    hint = "the forward computes something else: precision, inputs' dtypes, scaling, or buffers"
    says = f"{a.loss:.7g} before, {b.loss:.7g} after"
    return asked.judge(judged, says, hint, ok=judged.ok)


def same_clipping(evidence: Evidence) -> Gate:
    """The same clip calls with the same bounds, returning the same norms."""
    asked = Question("clipping", "gradient clipping")
    _, a, b, twin = evidence.pairs()[0]
    # Bounds that noise moves are computed by the program, from norms of earlier steps.
    noise = max(
        _bounds_apart(*calls)
        for _, x, _, shaken in evidence.pairs()
        for calls in zip(x.clips, (shaken or x).clips, strict=True)
    )
    for n, x, y, _ in evidence.pairs():
        for rank, (mine, theirs) in enumerate(zip(x.clips, y.clips, strict=True)):
            calls = [clippings(clips) for clips in (mine, theirs)]
            allowed = judge(
                _bounds_apart(mine, theirs),
                floor=evidence.floors.norm if noise else 0.0,
                twin=noise,
                ceiling=gradient_ceiling(evidence, evidence.floors.ceiling),
            )
            if not allowed.ok:
                here, there = _calls(calls[0]), _calls(calls[1])
                says = f"step {n + 1}, rank {rank}: {here} before, {there} after"
                hint = "a clip call was lost, added, or got another bound"
                return asked.fails(says, hint)
    measured = norm_gap(a, b)
    if measured is None:
        clipped = any(clippings(calls) for calls in a.clips)
        return asked.passes("no norm was returned" if clipped else "gradients are not clipped")
    judged = judge(
        measured,
        floor=evidence.floors.norm,
        twin=norm_gap(a, twin) if twin else None,
        ceiling=gradient_ceiling(evidence, evidence.floors.ceiling),
    )
    found = [values[0] for side in (a, b) for values in norms(side)[:1]]
    says = "norm " + " before, ".join(f"{value:.7g}" for value in found) + " after"
    hint = (
        "the norm is taken over other gradients: over local shards, per unit, or differently scaled"
    )
    if not judged.ok and _differ_by_more_than_clips_can(evidence, b):
        says += ", of gradients that differ before it"
        hint = "a clip scales all that it takes alike, and these differ by more: in their sum, say"
    return asked.judge(judged, says, hint, ok=judged.ok)


def _differ_by_more_than_clips_can(evidence: Evidence, after: Step) -> bool:
    """Whether gradients differ by more factors than there are clips that scale some of them, and
    one for those that no clip scales. Where ranks clip by norms of their own, nobody can tell."""
    if _clipped_apart(after) is not None:
        return False
    mine, theirs = evidence.before.first_gradients.whole, evidence.after.first_gradients.whole
    largest = max((sketch.norm for sketch in mine.values()), default=0.0)
    factors = sorted(
        theirs[name].norm / sketch.norm
        for name, sketch in mine.items()
        if name in theirs and sketch.norm > _SMALL * largest
    )
    others = sum(y > _APART * x for x, y in itertools.pairwise(factors))
    return others > len(clippings(after.clips[0]))


def _bounds_apart(
    mine: Sequence[Mapping[str, object]], theirs: Sequence[Mapping[str, object]]
) -> float:
    """Largest relative difference of the bounds of two ranks' calls; infinite where the calls are
    not the same."""
    bounds = [[call.get("bound") for call in clippings(calls)] for calls in (mine, theirs)]
    if [bound is None for bound in bounds[0]] != [bound is None for bound in bounds[1]]:
        return math.inf
    pairs = zip(*bounds, strict=True)
    return max((gap(float(str(x)), float(str(y))) for x, y in pairs if x is not None), default=0.0)


def _calls(clips: Sequence[Mapping[str, object]]) -> str:
    if not clips:
        return "no clip call"
    bounds = ", ".join(str(clip.get("bound")) for clip in clips)
    return f"{plural(len(clips), 'clip call')} (bound {bounds})"


def same_gradient(evidence: Evidence) -> Gate:
    """The gradients that the first step of each parameter uses, parameter by parameter."""
    asked = Question("gradient", "gradient, first step")
    mine, twin = evidence.before.first_gradients, evidence.twin
    measured = distances(mine, evidence.after.first_gradients)
    if isinstance(measured, NothingShared):
        return asked.void(f"gradients: {measured}")
    noise = _noise(distances(mine, twin.first_gradients) if twin else None)
    norm, floor = measured.norm, evidence.floors.gradient

    def least(name: str) -> float:
        own = measured.by_name[name][1]
        if evidence.undetermined.get(name) == 1.0:
            return 2.0  # nothing but rounding noise: it may be anything of its own size
        return max(floor, _BIASED * norm / own) if own else floor

    judged = per_parameter(measured, noise, least)
    total = judge(
        measured.together,
        floor=floor,
        twin=noise.together if noise else None,
        ceiling=gradient_ceiling(evidence, evidence.floors.gradient_ceiling),
    )
    hint = "reduction over ranks, clipping or accumulation differs, since the forward was the same"
    apart = _clipped_apart(evidence.before.steps[0])
    if apart is not None:
        hint = (
            f"the original clips by another norm on each rank ({apart}), so what an element is "
            "scaled by depends on which rank holds it; are there trained parameters that FSDP "
            "ignores, whose gradients no one reduces?"
        )
    gate = _parameters(asked, total, judged, hint)
    loss = _later_loss(evidence, [each.where for each in judged if not each.ok])
    if gate.status is Status.FAIL and loss:
        hint = "a model that is made later gets other targets, or its loss is another one"
        return dataclasses.replace(gate, says=f"{loss}; {gate.says}", hint=hint)
    return gate


def _later_loss(evidence: Evidence, wrong: list[str]) -> str:
    """The loss that the parameters ``wrong`` begin with, if they belong to a model that was made
    later and it is another one already."""
    if not wrong or not evidence.before.appeared.issuperset(wrong):
        return ""
    n, a, b, twin = evidence.pairs()[min(evidence.before.first_seen[name] for name in wrong)]
    scale = loss_scale(evidence)
    noise = loss_gap(a, twin, scale) if twin else None
    if judge(loss_gap(a, b, scale), floor=evidence.floors.loss, twin=noise).ok:
        return ""
    return f"step {n + 1}: loss {a.loss:.7g} before, {b.loss:.7g} after"


def _clipped_apart(step: Step) -> str | None:
    """Norms by which ranks clip in one and the same call, if they are not the same norm."""
    for values in norms(step):
        if max(gap(values[0], value) for value in values) > 10 * ROUNDING["float32"]:
            return listed([f"{value:.6g}" for value in values])
    return None


def same_update(evidence: Evidence) -> Gate:
    """What the first step of each parameter changes, parameter by parameter."""
    asked = Question("update", "update, first step")
    mine, twin = evidence.before.first_updates, evidence.twin
    measured = _updates(*mine, *evidence.after.first_updates)
    if isinstance(measured, NothingShared):
        return asked.void(f"updates: {measured}")
    noise = _noise(_updates(*mine, *twin.first_updates) if twin else None)
    weights = evidence.before.init.params.whole

    def least(name: str) -> float:
        own = measured.by_name[name][1]
        dtype = evidence.before.parameters[name].dtype
        # Adding a small update to a large weight rounds it to the weight's precision.
        rounding = (
            4 * ROUNDING.get(dtype, ROUNDING["float32"]) * weights[name].norm / own if own else 0
        )
        # Every undetermined element may have gone the other way; in 16 bits, any one may.
        one = 1 / evidence.before.parameters[name].elements if evidence.before.coarse else 0.0
        turned = max(evidence.undetermined.get(name, 0.0), evidence.turned.get(name, 0.0), one)
        share = 2 * math.sqrt(turned)
        return max(evidence.floors.gradient * 5, rounding) + share

    judged = per_parameter(measured, noise, least)
    # Together, only those whose direction is certain: under Adam every element weighs the same.
    uncertain = evidence.undetermined.keys() | evidence.turned.keys()
    certain = measured.only(name for name in measured.by_name if name not in uncertain)
    total = None
    if certain is not None:
        quiet = noise.only(certain.by_name) if noise else None
        floor = max(least(name) for name in certain.by_name)
        total = judge(
            certain.together,
            floor=floor,
            twin=quiet.together if quiet else None,
            ceiling=gradient_ceiling(evidence, evidence.floors.gradient_ceiling),
        )
    hint = "the optimizer does something else with the same gradients"
    return _parameters(asked, total, judged, hint)


def _updates(a0: Tensors, a1: Tensors, b0: Tensors, b1: Tensors) -> Distances | NothingShared:
    """Distances between the changes from ``a0`` to ``a1`` and those from ``b0`` to ``b1``."""
    starts = pair(a0.whole, b0.whole)
    ends = pair(a1.whole, b1.whole)
    if isinstance(starts, NothingShared):
        return starts
    if isinstance(ends, NothingShared):
        return ends
    found = {}
    for name, (end, other) in ends.both.items():
        if name in starts.both:
            start, first = starts.both[name]
            if end.is_finite() and other.is_finite():
                apart = change(start, end, first, other)
            else:
                apart = 0.0 if end.is_finite() == other.is_finite() else math.inf
            found[name] = (apart, length(start, end) if end.is_finite() else 0.0)
    return Distances(found) if found else NothingShared(len(starts.both), len(ends.both))


def _noise(found: Distances | NothingShared | None) -> Distances | None:
    """The twin's distances; a twin that shares no name measured nothing."""
    return found if isinstance(found, Distances) else None


def per_parameter(
    measured: Distances, noise: Distances | None, least: Callable[[str], float]
) -> list[Judged]:
    """Each parameter's relative distance beside its own floor and its own noise."""
    return [
        judge(
            measured.relative(name),
            floor=least(name),
            twin=noise.relative(name) if noise is not None and name in noise.by_name else None,
            where=name,
        )
        for name in measured.by_name
    ]


def _parameters(asked: Question, total: Judged | None, judged: list[Judged], hint: str) -> Gate:
    """A gate over all parameters together and each by itself; the worse one is shown."""
    most = worst(judged)
    wrong = sorted((j for j in judged if not j.ok), key=lambda j: -j.excess)
    shown = most
    if total is not None and (total.excess > most.excess or (total.hopeless and most.ok)):
        shown = total
    ok = shown.ok and most.ok
    over = "all together" if shown is total else f"worst: {shown.where}"
    says = f"{plural(len(judged), 'parameter')}, {over}"
    if wrong:
        says = f"{len(wrong)} of {plural(len(judged), 'parameter')} differ: " + listed(
            [j.where for j in wrong]
        )
    return asked.judge(shown, says, hint, ok=ok, details=beyond(wrong))
