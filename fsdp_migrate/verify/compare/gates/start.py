"""Do both sides start from the same weights and buffers?"""

from __future__ import annotations

import math

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

_SIGMAS = 6.0
"""How many standard deviations the statistics of two draws may be apart. One false alarm in half a
billion parameters, for weights that are independent and not heavy-tailed."""


def same_start(evidence: Evidence) -> Gate:
    """The same initial parameters and buffers; copies on several ranks agree."""
    asked = Question("start", "initial weights")
    before, after = evidence.before, evidence.after
    first = [_from_the_beginning(side) for side in (before, after)]
    measured = distances(*first)
    if isinstance(measured, NothingShared):
        return asked.fails(f"parameters: {measured}")
    relative = {name: measured.relative(name) for name in measured.by_name}
    most = max(relative, key=lambda name: relative[name])
    apart = [name for name, value in relative.items() if not value <= _SAME]
    hint = "weights are initialised, loaded or broadcast differently (sync_module_states)"
    if apart:
        says = f"{len(apart)} of {plural(len(relative), 'parameter')} differ: {listed(apart)}"
        unlike = _unlike(before, after) if before.deferred else []
        if unlike:
            return _drawn_from_others(unlike)
        return asked.fails(says, measured=relative[most], allowed=_SAME, hint=hint)
    split = _divergent(after)
    if split and not _divergent(before):
        says = f"ranks hold different copies of {listed(split)}"
        return asked.fails(says, hint)
    buffers = _buffers_apart(evidence)
    if buffers is not None:
        says, apart_by = buffers
        return asked.fails(says, measured=apart_by, allowed=_SAME_BUFFER, hint=hint)
    details = (f"ranks hold different copies of {listed(split)}, as in the original",) * bool(split)
    return asked.passes(
        f"{plural(len(relative), 'parameter')} and their buffers, equal",
        measured=relative[most],
        allowed=_SAME,
        details=details,
    )


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
    """Whether both sides drew their weights anew, differently, but from the same distributions.

    Only of a program that draws them after FSDP got the model on the meta device can nothing more
    be asked: whole tensors and shards take the random numbers in different orders.
    """
    if not evidence.before.deferred or same_start(evidence).status is not Status.FAIL:
        return False
    return not _unlike(evidence.before, evidence.after) and _buffers_apart(evidence) is None


def drawn(evidence: Evidence) -> Gate | None:
    """What can be said of the migrated program's own first weights, where they were replaced by the
    original's; None where they were not."""
    if evidence.drawn is None:
        return None
    unlike = _unlike(evidence.before, evidence.drawn)
    if unlike:
        return _drawn_from_others(unlike)
    count = len(evidence.drawn.init.params.whole)
    says = (
        f"{plural(count, 'parameter')} drawn on the meta device, in another order: means and "
        "spreads agree. All else was compared from the original's weights, buffers and random state"
    )
    copied = sorted(_copied(evidence.drawn.init.params)) if evidence.drawn.drawn_alike else []
    alike = (f"{_DRAWN_ALIKE}: {listed(copied)}",) if copied else ()
    return _DRAWN.note(says, details=alike)


_DRAWN_ALIKE = (
    "ranks that are seeded alike drew the same shards, as DTensors do on CPUs; on GPUs each shard "
    "is drawn from its own part of the stream"
)
_DRAWN = Question("drawn", "weights drawn anew")


def _drawn_from_others(unlike: list[str]) -> Gate:
    """Weights made on the meta device cannot be compared one by one, but these are of another kind.

    Not to be blamed on the random number generators, whose states always differ then.
    """
    return _DRAWN.fails(
        f"{plural(len(unlike), 'parameter')} drawn from something else: {unlike[0]}",
        "reset_parameters of the sharded modules, or the seeds of the ranks, differ",
        details=tuple(unlike[1:5]),
    )


def _unlike(before: Recording, after: Recording) -> list[str]:
    """Parameters whose values cannot come from the same distribution, each with the reason."""
    paired = pair(before.init.params.whole, after.init.params.whole)
    if isinstance(paired, NothingShared):
        return [str(paired)]
    found = []
    for name, (a, b) in paired.both.items():
        reason = _unlikely(a, b)
        if reason:
            found.append(f"{name} {reason}")
    if after.drawn_alike:
        return found
    copied = set(_copied(after.init.params)) - set(_copied(before.init.params))
    return [*found, *(f"{name} has the same values on several ranks" for name in sorted(copied))]


def _unlikely(a: Sketch, b: Sketch) -> str | None:
    """Why the values of ``a`` and ``b`` are not two draws of the same kind; None if they may be."""
    if not b.is_finite():
        return "is not finite"
    (mean, spread), (other, width) = _moments(a), _moments(b)
    if not spread or not width:
        if spread == width and gap(mean, other, scale=1e-30) <= _SAME:
            return None
        return f"is {_described(mean, spread)} before, {_described(other, width)} after"
    apart = _SIGMAS * math.sqrt((spread**2 + width**2) / a.count)
    # The logarithm of a variance estimated from n normal values has variance 2 / n.
    factor = math.exp(_SIGMAS * math.sqrt(1.0 / a.count) + 0.01)
    if abs(mean - other) > apart or not 1 / factor <= width / spread <= factor:
        return f"is {_described(mean, spread)} before, {_described(other, width)} after"
    return None


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
