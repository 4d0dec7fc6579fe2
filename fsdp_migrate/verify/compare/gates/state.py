"""The model at the end: every parameter by name, every buffer on every rank."""

from __future__ import annotations

import math
from collections.abc import Collection

from fsdp_migrate.verify.compare.coverage import NothingShared, listed, pair
from fsdp_migrate.verify.compare.envelope import ROUNDING, Judged, beyond, gap, judge, worst
from fsdp_migrate.verify.compare.evidence import Evidence, distances
from fsdp_migrate.verify.compare.exact import differences
from fsdp_migrate.verify.compare.gate import Gate, Question, plural
from fsdp_migrate.verify.compare.gates.first_step import per_parameter
from fsdp_migrate.verify.compare.recording import Buffer, Tensors
from fsdp_migrate.verify.compare.sketch import length

_BUFFER = 1e-5

_DRIFT = 1e-4
"""Share of the way travelled that is no defect: the mildest, lost weight decay, is ten times it."""


def same_parameters(evidence: Evidence) -> Gate:
    """Final parameters by name: element by element for models small enough to be written."""
    asked = Question("parameters", "final parameters")
    judged, says = final_parameters(evidence)
    if not judged:
        return asked.void(says)
    says = f"{says} of {plural(len(judged), 'parameter')}"
    return _gate(asked, judged, says, evidence.undetermined)


def final_parameters(evidence: Evidence) -> tuple[list[Judged], str]:
    """How far apart every parameter is at the end, and what was measured; none, and why."""
    exact = differences(evidence.before, evidence.after)
    if exact is None or not evidence.before.trainable <= set(exact):
        return _estimated(evidence)
    noise = differences(evidence.before, evidence.twin) if evidence.twin else None
    judged = []
    for name, apart in exact.items():
        dtype = evidence.before.parameters[name].dtype
        rounding = 8 * ROUNDING.get(dtype, ROUNDING["float32"])
        floor = rounding * apart.size + _travel(evidence, name)
        twin = noise[name].typical if noise is not None and name in noise else None
        judged.append(judge(apart.typical, floor=floor, twin=twin, where=name))
    return judged, "typical |difference|"


def _travel(evidence: Evidence, name: str) -> float:
    """How far rounding alone may carry the elements of ``name``, absolute.

    Where the gradient of some elements is rounding noise, an adaptive optimizer moves them at full
    speed in a direction that rounding decides: twice the way of a typical element. In coarse
    precision no element's direction is certain, so a share of that way is allowed for all. A few
    elements that the first step may turn are a step's way apart from then on.
    """
    path = 0.0
    previous = evidence.before.init.params.whole.get(name)
    for snapshot in evidence.before.after:
        now = snapshot.params.whole.get(name)
        if now is not None and previous is not None and now.is_finite() and now.count:
            path += length(previous, now) / math.sqrt(now.count)
        previous = now or previous
    if name in evidence.undetermined:
        return 4 * path
    step = path / max(len(evidence.before.after), 1)
    turned = 4 * step * math.sqrt(evidence.turned.get(name, 0.0))
    return max(_DRIFT, evidence.floors.gradient * 5) * path + turned


def _estimated(evidence: Evidence) -> tuple[list[Judged], str]:
    """Final parameters by their sketches."""
    if not evidence.before.after or not evidence.after.after:
        return [], "no final parameters"
    last = evidence.steps - 1
    mine, theirs = evidence.before.after[last].params, evidence.after.after[last].params
    shaken = evidence.twin.after[last].params if evidence.twin is not None else None
    return estimated(evidence, mine, theirs, shaken)


def estimated(
    evidence: Evidence, mine: Tensors, theirs: Tensors, shaken: Tensors | None
) -> tuple[list[Judged], str]:
    """How far apart parameters are by their sketches, relative to their size, and what was
    measured; ``shaken`` are the twin's."""
    measured = distances(mine, theirs)
    if isinstance(measured, NothingShared):
        return [], f"parameters: {measured}"
    noise = distances(mine, shaken) if shaken is not None else None

    def least(name: str) -> float:
        dtype = evidence.before.parameters[name].dtype
        own = measured.by_name[name][1]
        count = evidence.before.parameters[name].elements
        floor = 8 * ROUNDING.get(dtype, ROUNDING["float32"])
        way = _travel(evidence, name) * math.sqrt(count) / own if own else 0.0
        return floor + (way if math.isfinite(way) else 0.0)

    quiet = None if isinstance(noise, NothingShared) else noise
    return per_parameter(measured, quiet, least), "estimated relative distance"


def _gate(
    asked: Question, judged: list[Judged], says: str, uncertain: Collection[str] = ()
) -> Gate:
    """A gate over many differences. Shows the largest whose size means something.

    ``uncertain`` are parameters of which rounding decides where they go.
    """
    wrong = sorted((j for j in judged if not j.ok), key=lambda j: -j.excess)
    shown = worst(judged)
    noisy: tuple[str, ...] = ()
    if wrong:
        says = f"{len(wrong)} of {plural(len(judged), 'parameter')} differ: " + listed(
            [j.where for j in wrong]
        )
    else:
        certain = [j for j in judged if j.where not in uncertain]
        largest = max(certain or judged, key=lambda j: j.measured)
        says = f"{says}, at {largest.where}"
        shown = largest
        if certain and len(certain) < len(judged):
            most = max(j.measured for j in judged if j.where in uncertain)
            names = sorted(j.where for j in judged if j.where in uncertain)
            noisy = (f"rounding decides where parts of {listed(names)} go: up to {most:.1e}",)
    return asked.judge(shown, says, ok=not wrong, details=noisy or beyond(wrong))


def buffers_apart_since(evidence: Evidence) -> int | None:
    """The step, from 1, after which a buffer first has other values; None when none ever has."""
    for n in range(evidence.steps):
        mine, theirs = evidence.before.after[n].buffers, evidence.after.after[n].buffers
        for x, y in zip(mine, theirs, strict=True):
            for name in x.keys() & y.keys():
                if _buffer_gap(x[name], y[name]) > max(_BUFFER, evidence.floors.loss):
                    return n + 1
    return None


def _buffer_gap(a: Buffer, b: Buffer) -> float:
    return max(gap(a[2], b[2], scale=math.sqrt(abs(a[3]))), gap(a[3], b[3]))


def same_buffers(evidence: Evidence) -> Gate:
    """Final buffers on every rank: names, dtypes, values."""
    asked = Question("buffers", "buffers")
    last = evidence.steps - 1
    first = evidence.before.init.buffers
    mine, theirs = evidence.before.after[last].buffers, evidence.after.after[last].buffers
    noise = evidence.twin.after[last].buffers if evidence.twin else None
    if not any(mine) and not any(theirs):
        return asked.passes("the model has none")
    carried = max((_travel(evidence, name) for name in evidence.undetermined), default=0.0)
    judged = []
    for rank, (x, y) in enumerate(zip(mine, theirs, strict=True)):
        paired = pair(x, y)
        if isinstance(paired, NothingShared):
            return asked.fails(f"rank {rank}: {paired}")
        if not paired.complete:
            side = "before" if paired.only_before else "after"
            says = f"rank {rank}: only {side}: {listed(paired.only_before or paired.only_after)}"
            return asked.fails(says)
        for name, (a, b) in paired.both.items():
            if a[0] != b[0]:
                says = f"{name} is {a[0]} before and {b[0]} after"
                hint = "MixedPrecision(buffer_dtype=...) has no counterpart: cast buffers once"
                return asked.fails(says, hint)
            twin = None
            if noise is not None and name in noise[rank]:
                twin = _buffer_gap(a, noise[rank][name])
            apart = _buffer_gap(a, b)
            floor = max(_BUFFER, evidence.floors.loss)
            if a[3] and "float" in a[0] and first[rank].get(name) != a:
                # Averages of activations follow the biases in front of them: so does the running
                # mean of a BatchNorm a bias whose gradient is zero but for rounding.
                floor = max(floor, carried * math.sqrt(math.prod(a[1]) / abs(a[3])))
            judged.append(judge(apart, floor=floor, twin=twin, where=f"{name} on rank {rank}"))
    return _gate(asked, judged, f"{plural(len(mine[0]), 'buffer')} on each rank")
