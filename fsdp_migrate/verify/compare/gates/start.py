"""Do both sides start from the same weights and buffers?"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fsdp_migrate.verify.compare.coverage import NothingShared, listed, pair
from fsdp_migrate.verify.compare.envelope import beyond, gap, judge, worst
from fsdp_migrate.verify.compare.evidence import Distances, Evidence, distances
from fsdp_migrate.verify.compare.gate import Gate, Question, Status, plural
from fsdp_migrate.verify.compare.recording import Recording, Tensors
from fsdp_migrate.verify.compare.sketch import Sketch

_SAME = 1e-7
"""Relative difference of initial values that is no more than one rounding in fp32."""

_SAME_BUFFER = 1e-5

_SAME_LATER = 1e-5
"""The same for weights that may have been trained before."""

_CHANCE = 50.0
"""How unlike two draws may be (see :func:`_apart`). Less than one false alarm in a billion
parameters, for weights that are independent and not heavy-tailed."""

_MOST = 500_000
"""The most values that count: spreads less than 1 % apart are never told from each other."""

_FEW = 30
"""Fewer values of both sides together would not tell a spread that is ten times as large."""


def same_start(evidence: Evidence) -> Gate:
    """The same initial parameters; copies on several ranks agree."""
    asked = _START
    before, after = evidence.before, evidence.after
    first = [_from_the_beginning(side) for side in (before, after)]
    measured = distances(*first)
    if isinstance(measured, NothingShared):
        return asked.fails(f"parameters: {measured}")
    relative = {name: measured.relative(name) for name in measured.by_name}
    most = max(relative, key=lambda name: relative[name])
    apart = [name for name, value in relative.items() if not value <= _SAME]
    if apart:
        says = f"{len(apart)} of {plural(len(relative), 'parameter')} differ: {listed(apart)}"
        unlike = _unlike(before, after) if before.deferred else []
        if unlike:
            return _drawn_from_others(unlike)
        buffers = _buffers_apart(evidence)
        if before.deferred and buffers is not None:
            return _DRAWN.fails(buffers[0], _ANEW, measured=buffers[1], allowed=_SAME_BUFFER)
        return asked.fails(says, measured=relative[most], allowed=_SAME, hint=_STARTED)
    split = _divergent(after)
    if split and not _divergent(before):
        says = f"ranks hold different copies of {listed(split)}"
        return asked.fails(says, _STARTED)
    details = (f"ranks hold different copies of {listed(split)}, as in the original",) * bool(split)
    return asked.passes(
        f"{plural(len(relative), 'parameter')}, equal",
        measured=relative[most],
        allowed=_SAME,
        details=details,
    )


_START = Question("start", "initial weights")
_STARTED = "weights are initialised, loaded or broadcast differently (sync_module_states)"


def same_first_buffers(evidence: Evidence) -> Gate | None:
    """The same initial buffers. None where they are, and where weights are not."""
    buffers = _buffers_apart(evidence)
    if buffers is None or same_start(evidence).status is Status.FAIL:
        return None
    says, apart_by = buffers
    return _START.fails(says, measured=apart_by, allowed=_SAME_BUFFER, hint=_STARTED)


def begins_with_other_weights(evidence: Evidence) -> bool:
    """Whether weights that are there from the beginning differ, and not buffers alone."""
    measured = distances(*map(_from_the_beginning, (evidence.before, evidence.after)))
    if isinstance(measured, NothingShared):
        return False
    return any(not measured.relative(name) <= _SAME for name in measured.by_name)


def _from_the_beginning(recording: Recording) -> Tensors:
    """First values of the parameters that were there before the first step; others may be what was
    trained until they appeared."""
    named = recording.init.params.by_name
    return Tensors({name: v for name, v in named.items() if name not in recording.appeared})


def same_later_start(evidence: Evidence) -> Gate | None:
    """Models that were built later start from the same weights. None where there was none.

    What they start from may have been trained, so rounding counts.
    """
    asked = Question("later-start", "weights of later models")
    names = evidence.before.appeared & evidence.after.appeared
    if not names:
        return None
    measured = distances(evidence.before.init.params, evidence.after.init.params)
    if isinstance(measured, NothingShared):
        return asked.fails(f"parameters: {measured}")
    twin = evidence.twin
    noise = distances(evidence.before.init.params, twin.init.params) if twin else None
    quiet = noise if isinstance(noise, Distances) else None
    judged = [
        judge(
            measured.relative(name),
            floor=max(_SAME_LATER, evidence.floors.gradient),
            twin=quiet.relative(name) if quiet and name in quiet.by_name else None,
            where=name,
        )
        for name in sorted(names & measured.by_name.keys() - set(evidence.undetermined))
    ]
    if not judged:
        return asked.note("where rounding takes their weights is not certain")
    wrong = [each for each in judged if not each.ok]
    hint = "a model that is built when training has begun is initialised or loaded differently"
    says = f"{plural(len(judged), 'parameter')} of models built later"
    if wrong:
        says = f"{len(wrong)} of {says} differ: {listed([each.where for each in wrong])}"
    return asked.judge(worst(judged), says, hint, ok=not wrong, details=beyond(wrong))


def _divergent(recording: Recording) -> list[str]:
    params = recording.init.params
    return [name for name in params.by_name if params.divergence(name) > _SAME]


def _buffers_apart(evidence: Evidence) -> tuple[str, float | None] | None:
    """The first buffer that starts with other values, and by how much; None when none does."""
    sides = (evidence.before.init.buffers, evidence.after.init.buffers)
    for rank, (x, y) in enumerate(zip(*sides, strict=True)):
        paired = pair(x, y)
        if isinstance(paired, NothingShared):
            if x or y:
                return f"buffers: {paired}", None
            continue
        for name, (a, b) in paired.both.items():
            # Buffers may have been cast already; that is judged at the end.
            apart = max(gap(a[2], b[2], scale=abs(a[3]) ** 0.5), gap(a[3], b[3]))
            if apart > _SAME_BUFFER and a[0] == b[0]:
                return f"buffer {name} differs on rank {rank}", apart
    return None


def drawn_apart(evidence: Evidence) -> bool:
    """Whether both sides start from different weights, and rightly so.

    Either they drew them anew from the same distributions, after FSDP got the model on the meta
    device: whole tensors and shards take the random numbers in different orders. Or ranks gave FSDP
    different weights, the same on both sides, of which each keeps what is its own.
    """
    if same_start(evidence).status is not Status.FAIL or _buffers_apart(evidence) is not None:
        return False
    if evidence.before.deferred:
        return not _unlike(evidence.before, evidence.after)
    return _cut_from_others(evidence.before, evidence.after)


def _cut_from_others(before: Recording, after: Recording) -> bool:
    """Whether models that differ from rank to rank were given to FSDP, each rank's the same on both
    sides. Where copies of a parameter differ, no two programs can start alike."""
    return len(set(before.given)) > 1 and before.given == after.given and not _divergent(before)


def drawn(evidence: Evidence) -> Gate | None:
    """What can be said of the migrated program's own first weights, where they were replaced by the
    original's; None where they were not."""
    if evidence.drawn is None:
        return None
    if not evidence.before.deferred:
        return _DRAWN.note(_CUT)
    unlike = _unlike(evidence.before, evidence.drawn)
    if unlike:
        return _drawn_from_others(unlike)
    count = len(evidence.drawn.init.params.whole)
    says = (
        f"{plural(count, 'parameter')} drawn on the meta device, in another order: means and "
        "spreads agree. All else was compared from the original's weights, buffers and random state"
    )
    copied = sorted(_copied(evidence.drawn.init.params)) if evidence.drawn.drawn_alike else []
    details = (f"{_DRAWN_ALIKE}: {listed(copied)}",) if copied else ()
    untold = _untold(evidence.before, evidence.drawn)
    if untold:
        few = f"too few independent values to tell a distribution: {listed(untold)}"
        details = (*details, few)
    return _DRAWN.note(says, details=details)


_DRAWN_ALIKE = (
    "ranks that are seeded alike drew the same shards, as DTensors do on CPUs; on GPUs each shard "
    "is drawn from its own part of the stream"
)
_CUT = (
    "every rank made a model of its own, and none is broadcast (sync_module_states): FSDP1 and "
    "FSDP2 put other parts of them together. All else was compared from the original's weights"
)
_DRAWN = Question("drawn", "weights drawn anew")
_ANEW = "reset_parameters of the sharded modules, or the seeds of the ranks, differ"


def _drawn_from_others(unlike: list[str]) -> Gate:
    """Weights made on the meta device cannot be compared one by one, but these are of another kind.

    Not to be blamed on the random number generators, whose states always differ then.
    """
    return _DRAWN.fails(
        f"{plural(len(unlike), 'parameter')} drawn from something else: {unlike[0]}",
        _ANEW,
        details=tuple(unlike[1:5]),
    )


def _unlike(before: Recording, after: Recording) -> list[str]:
    """Parameters whose values cannot come from the same distribution, each with the reason."""
    paired = pair(before.init.params.whole, after.init.params.whole)
    if isinstance(paired, NothingShared):
        return [str(paired)]
    copied = set(_copied(after.init.params)) - set(_copied(before.init.params))
    drawn = _independent(after)
    found = []
    for name, (a, b) in paired.both.items():
        if not b.is_finite():
            found.append(f"{name} is not finite")
        elif _apart(a, drawn[name]) > _CHANCE:
            says = f"{_described(*_moments(a))} before, {_described(*_moments(b))} after"
            found.append(f"{name} is {says}")
    if after.drawn_alike:
        return found
    return [*found, *(f"{name} has the same values on several ranks" for name in sorted(copied))]


def _untold(before: Recording, drawn: Recording) -> list[str]:
    """Parameters of which nothing was found out, since they have too few values."""
    mine, theirs = before.init.params.whole, _independent(drawn)
    return [
        name
        for name in sorted(mine.keys() & theirs.keys())
        if mine[name].count + theirs[name].count < _FEW
        and not _same_constant(mine[name], theirs[name])
    ]


def _independent(recording: Recording) -> Mapping[str, Sketch]:
    """The values of each parameter that say something about its distribution.

    Those of one rank, where all ranks drew from equally seeded generators: the others' repeat them.
    """
    params = recording.init.params
    if not recording.drawn_alike or not _copied(params):
        return params.whole
    return {
        name: max((s for _, s in filter(None, pieces)), key=lambda s: s.count)
        for name, pieces in params.by_name.items()
        if name in params.whole
    }


def _apart(a: Sketch, b: Sketch) -> float:
    """How much less likely two samples are if one normal distribution made both: Bartlett's test,
    with the means.

    Above ``x`` by chance in about ``exp(-x / 2)`` of cases, however few the values are. A spread
    takes two values to be seen: one value for itself tells nothing, but that it is 0.
    """
    if _same_constant(a, b):
        return 0.0
    (mean, spread), (other, width) = _moments(a), _moments(b)
    samples = ((a, spread), (b, width))
    if any(not s and (each.count > 1 or not each.squares) for each, s in samples):
        return math.inf  # one is constant
    counts = [min(each.count, _MOST) for each, _ in samples]
    freedom = sum(counts) - 2
    if not freedom:
        return 0.0
    # Variances as each sample tells them, and both together around one mean.
    own = [(n - 1, s * s * n / (n - 1)) for n, (_, s) in zip(counts, samples, strict=True) if n > 1]
    between = counts[0] * counts[1] / sum(counts) * (mean - other) ** 2
    common = (sum(n * variance for n, variance in own) + between) / freedom
    return sum(n * math.log(common / variance) for n, variance in own)


def _same_constant(a: Sketch, b: Sketch) -> bool:
    (mean, spread), (other, width) = _moments(a), _moments(b)
    return not spread and not width and gap(mean, other, scale=1e-30) <= _SAME


def _moments(sketch: Sketch) -> tuple[float, float]:
    """Mean and standard deviation; the latter exactly 0 where it is rounding."""
    mean = sketch.total / sketch.count
    variance = sketch.squares / sketch.count - mean * mean
    negligible = 1e-12 * sketch.squares / sketch.count
    return mean, math.sqrt(variance) if variance > negligible else 0.0


def _described(mean: float, spread: float) -> str:
    return f"{mean:.3g} throughout" if not spread else f"{mean:.2g} +- {spread:.2g}"


def _copied(params: Tensors) -> list[str]:
    """Parameters of which different ranks hold different elements with the same values: drawn with
    equally seeded generators, which makes the model smaller than it looks."""
    found = []
    for name, pieces in params.by_name.items():
        distinct = {key: sketch for key, sketch in filter(None, pieces) if sketch.count > 1}
        values = [(s.count, s.total, s.squares) for s in distinct.values() if _moments(s)[1]]
        if len(values) != len(set(values)):
            found.append(name)
    return found
