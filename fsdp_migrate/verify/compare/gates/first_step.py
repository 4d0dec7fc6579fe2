"""The first optimizer step, before differences grow: loss, clipping, gradient, update."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from fsdp_migrate.verify.compare.coverage import listed
from fsdp_migrate.verify.compare.envelope import ROUNDING, Judged, gap, judge, worst
from fsdp_migrate.verify.compare.evidence import Evidence, distances
from fsdp_migrate.verify.compare.gate import Gate, Status, plural
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


def norms(step: Step) -> list[list[float]]:
    """The gradient norms that clip calls returned, per rank, combined where they are partial."""
    columns = []
    for number in range(min(len(rank) for rank in step.clips)):
        calls = [rank[number] for rank in step.clips]
        values = [float(call["norm"]) for call in calls if call.get("norm") is not None]
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
    """Relative distance of the gradients of all common parameters together."""
    return _together(distances(a, b))


def _together(measured: dict[str, tuple[float, float]]) -> float:
    distance = math.sqrt(math.fsum(d * d for d, _ in measured.values()))
    norm = math.sqrt(math.fsum(n * n for _, n in measured.values() if math.isfinite(n)))
    return distance / norm if norm else math.inf * (distance > 0)


def same_loss(evidence: Evidence) -> Gate:
    """The first forward gives the same losses: nothing has been updated yet."""
    key, title = "first-loss", "loss, first step"
    _, a, b, twin = evidence.pairs()[0]
    if not any(a.losses):
        says = "no loss was seen: backward was called on no scalar"
        return Gate(key=key, title=title, status=Status.VOID, says=says)
    judged = judge(
        loss_gap(a, b, 0.0),
        floor=evidence.floors.first_loss,
        twin=loss_gap(a, twin, 0.0) if twin else None,
    )
    hint = "the forward computes something else: precision, inputs' dtypes, scaling, or buffers"
    return _numbers(key, title, judged, f"{a.loss:.7g} before, {b.loss:.7g} after", hint)


def same_clipping(evidence: Evidence) -> Gate:
    """The same clip calls with the same bounds, returning the same norms."""
    key, title = "clipping", "gradient clipping"
    _, a, b, twin = evidence.pairs()[0]
    for n, x, y, _ in evidence.pairs():
        for rank, (mine, theirs) in enumerate(zip(x.clips, y.clips, strict=True)):
            calls = [[c for c in clips if c["by"] != "get_total_norm"] for clips in (mine, theirs)]
            bounds = [[c.get("bound") for c in clips] for clips in calls]
            if bounds[0] != bounds[1]:
                here, there = _calls(calls[0]), _calls(calls[1])
                says = f"step {n + 1}, rank {rank}: {here} before, {there} after"
                hint = "a clip call was lost, added, or got another bound"
                return Gate(key=key, title=title, status=Status.FAIL, says=says, hint=hint)
    measured = norm_gap(a, b)
    if measured is None:
        says = "no norm was returned" if any(a.clips) else "gradients are not clipped"
        return Gate(key=key, title=title, status=Status.PASS, says=says)
    judged = judge(measured, floor=evidence.floors.norm, twin=norm_gap(a, twin) if twin else None)
    found = [values[0] for side in (a, b) for values in norms(side)[:1]]
    says = "norm " + " before, ".join(f"{value:.7g}" for value in found) + " after"
    hint = (
        "the norm is taken over other gradients: over local shards, per unit, or differently scaled"
    )
    return _numbers(key, title, judged, says, hint)


def _calls(clips: Sequence[Mapping[str, object]]) -> str:
    if not clips:
        return "no clip call"
    bounds = ", ".join(str(clip.get("bound")) for clip in clips)
    return f"{plural(len(clips), 'clip call')} (bound {bounds})"


def same_gradient(evidence: Evidence) -> Gate:
    """The gradients that the first optimizer step uses, parameter by parameter."""
    key, title = "gradient", "gradient, first step"
    _, a, b, twin = evidence.pairs()[0]
    measured = distances(a.gradients, b.gradients)
    noise = distances(a.gradients, twin.gradients) if twin else None
    if not measured:
        says = "no gradient in common"
        return Gate(key=key, title=title, status=Status.VOID, says=says)
    norm = math.sqrt(math.fsum(n * n for _, n in measured.values() if math.isfinite(n)))
    floor = evidence.floors.gradient

    def least(name: str) -> float:
        own = measured[name][1]
        if evidence.undetermined.get(name) == 1.0:
            return 2.0  # nothing but rounding noise: it may be anything of its own size
        return max(floor, _BIASED * norm / own) if own else floor

    judged = per_parameter(measured, noise, least)
    total = judge(
        _together(measured), floor=floor, twin=_together(noise) if noise is not None else None
    )
    hint = "reduction over ranks, clipping or accumulation differs, since the forward was the same"
    return _parameters(key, title, total, judged, hint)


def same_update(evidence: Evidence) -> Gate:
    """What the first optimizer step changes, parameter by parameter."""
    key, title = "update", "update, first step"
    measured = _updates(
        evidence.before.init.params,
        evidence.before.after[0].params,
        evidence.after.init.params,
        evidence.after.after[0].params,
    )
    if not measured:
        says = "no updated parameter in common"
        return Gate(key=key, title=title, status=Status.VOID, says=says)
    noise = None
    if evidence.twin is not None:
        noise = _updates(
            evidence.before.init.params,
            evidence.before.after[0].params,
            evidence.twin.init.params,
            evidence.twin.after[0].params,
        )
    weights = evidence.before.init.params.whole

    def least(name: str) -> float:
        own = measured[name][1]
        dtype = evidence.before.parameters[name].dtype
        # Adding a small update to a large weight rounds it to the weight's precision.
        rounding = (
            4 * ROUNDING.get(dtype, ROUNDING["float32"]) * weights[name].norm / own if own else 0
        )
        # Every undetermined element may have gone the other way.
        share = 2 * math.sqrt(evidence.undetermined.get(name, 0.0))
        return max(evidence.floors.gradient * 5, rounding) + share

    judged = per_parameter(measured, noise, least)
    # Together, only those whose direction is certain: under Adam every element weighs the same.
    certain = {n: pair for n, pair in measured.items() if n not in evidence.undetermined}
    total = judge(
        _together(certain),
        floor=max((least(name) for name in certain), default=0.0),
        twin=_together({n: noise[n] for n in certain if n in noise}) if noise else None,
    )
    hint = "the optimizer does something else with the same gradients"
    return _parameters(key, title, total, judged, hint)


def _updates(a0: Tensors, a1: Tensors, b0: Tensors, b1: Tensors) -> dict[str, tuple[float, float]]:
    found = {}
    for name, end in a1.whole.items():
        if name in a0.whole and name in b0.whole and name in b1.whole:
            start, other, last = a0.whole[name], b0.whole[name], b1.whole[name]
            finite = [s.is_finite() for s in (end, last)]
            apart = (
                change(start, end, other, last)
                if all(finite)
                else math.inf * (finite[0] != finite[1])
            )
            found[name] = (0.0 if math.isnan(apart) else apart, length(start, end))
    return found


def per_parameter(
    measured: dict[str, tuple[float, float]],
    noise: dict[str, tuple[float, float]] | None,
    least: Callable[[str], float],
) -> list[Judged]:
    """Each parameter's relative distance beside its own floor and its own noise."""
    judged = []
    for name, (distance, norm) in measured.items():
        relative = distance / norm if norm else math.inf * (distance > 0)
        own = None
        if noise is not None and name in noise:
            apart, size = noise[name]
            own = apart / size if size else 0.0
        judged.append(
            judge(
                0.0 if math.isnan(relative) else relative, floor=least(name), twin=own, where=name
            )
        )
    return judged


def _parameters(key: str, title: str, total: Judged, judged: list[Judged], hint: str) -> Gate:
    """A gate over all parameters together and each by itself; the worse one is shown."""
    most = worst(judged)
    wrong = sorted((j for j in judged if not j.ok), key=lambda j: -j.excess)
    shown = total if not total.ok or total.excess > most.excess else most
    ok = total.ok and most.ok
    over = "all together" if shown is total else f"worst: {shown.where}"
    says = f"{plural(len(judged), 'parameter')}, {over}"
    if wrong:
        says = f"{len(wrong)} of {plural(len(judged), 'parameter')} differ: " + listed(
            [j.where for j in wrong]
        )
    return Gate(
        key=key,
        title=title,
        status=Status.PASS if ok else Status.FAIL,
        says=says,
        measured=shown.measured,
        allowed=shown.allowed,
        twin=shown.twin,
        hint="" if ok else hint,
        details=tuple(f"{j.where}: {j.measured:.1e}, allowed {j.allowed:.1e}" for j in wrong[:5]),
    )


def _numbers(key: str, title: str, judged: Judged, says: str, hint: str) -> Gate:
    return Gate(
        key=key,
        title=title,
        status=Status.PASS if judged.ok else Status.FAIL,
        says=says,
        measured=judged.measured,
        allowed=judged.allowed,
        twin=judged.twin,
        hint="" if judged.ok else hint,
    )
