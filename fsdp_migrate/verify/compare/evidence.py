"""The recordings that gates look at."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from fsdp_migrate.verify.compare.coverage import NothingShared, pair
from fsdp_migrate.verify.compare.envelope import FACTOR, Floors, floors
from fsdp_migrate.verify.compare.recording import Recording, Step, Tensors
from fsdp_migrate.verify.compare.sketch import Sketch

# Elements this many powers of two below the largest of their gradient are rounding noise (fp32 has
# 24 bits; sums lose a few more).
_NOISE_BITS = 20

# A gradient that rounding-size noise changes by more than this is noise altogether: that of a key
# bias in attention, for one, is zero mathematically.
_NOISY = 0.05

# Of so many elements that noise may turn, the twin has turned about as many as another run would.
_FEW = 3


@dataclass(frozen=True)
class Evidence:
    """Two recordings and, if it was run, the original's twin."""

    before: Recording
    after: Recording
    twin: Recording | None = None
    drawn: Recording | None = None
    """The migrated run with its own first weights, where ``after`` took over the original's."""
    changed: frozenset[str] = frozenset()
    """The Python files that the two trees have different contents of."""
    reduces_more: bool = False
    """See :attr:`Plan.reduces_more`."""

    def __post_init__(self) -> None:
        after = _entered_alike(self.before, self.after)
        if after is not self.after:
            object.__setattr__(self, "after", after)

    def until(self, count: int) -> Evidence:
        """What is there up to step ``count``."""
        sides = {
            side: recording.until(count)
            for side in ("before", "after", "twin")
            if (recording := getattr(self, side)) is not None
        }
        return dataclasses.replace(self, **sides)

    @property
    def floors(self) -> Floors:
        """The floors for the original's precision."""
        return floors(self.before.precision)

    @property
    def steps(self) -> int:
        """Steps that all sides have."""
        sides = [self.before, self.after, *([self.twin] if self.twin else [])]
        return min(len(side.steps) for side in sides)

    def pairs(self) -> list[tuple[int, Step, Step, Step | None]]:
        """Number, original, migrated and twin of every common step."""
        return [
            (
                n,
                self.before.steps[n],
                self.after.steps[n],
                self.twin.steps[n] if self.twin else None,
            )
            for n in range(self.steps)
        ]

    @cached_property
    def undetermined(self) -> dict[str, float]:
        """Per parameter, the share of its first gradient's elements that is rounding noise.

        Adam normalises each element by itself and so turns such noise into full-size steps: in a
        correct migration the updates of those elements differ completely.
        """
        shares = {}
        twin = self.twin.first_gradients.whole if self.twin else {}
        for name, gradient in self.before.first_gradients.whole.items():
            counts = self._spread.get(name, {})
            top = max(counts, default=0)
            tiny = sum(n for e, n in counts.items() if e < top - _NOISE_BITS)
            share = tiny / sum(counts.values()) if counts else 0.0
            noise = twin.get(name)
            if noise is not None and gradient.distance(noise) > _NOISY * gradient.norm:
                share = 1.0
            if share:
                shares[name] = share
        return shares

    @cached_property
    def turned(self) -> dict[str, float]:
        """Per parameter, the share of its elements that noise may turn around in the first step,
        where they are so few that the twin need not have turned as many.

        An element of a gradient that is as small as the noise of one goes either way under Adam,
        and one such element is most of what a bias of a thousand differs by; one that is as small
        as Adam's ``eps`` goes less far, and counts by the square of how far. What the twin turned
        in a large parameter is what any run turns in it; of a few elements, another run turns
        others. In 16 bits any element may be one: nothing is counted.
        """
        shares: dict[str, float] = {}
        if self.twin is None or self.before.coarse:
            return shares
        noisy = self.twin.first_gradients.whole
        for name, gradient in self.before.first_gradients.whole.items():
            counts = self._spread.get(name, {})
            if name not in noisy or not counts or not gradient.count:
                continue
            noise = separation(gradient, noisy[name]) / math.sqrt(gradient.count)
            if _turned(counts, noise) >= _FEW:
                continue
            step = self.before.steps[self.before.first_seen[name]]
            eps = self.before.settings(step).get(name, {}).get("eps", 0.0)
            share = _turned(counts, FACTOR * noise, eps if isinstance(eps, float) else 0.0)
            if math.sqrt(share / gradient.count) > self.floors.gradient:
                shares[name] = share / gradient.count
        return shares

    @cached_property
    def _spread(self) -> dict[str, Mapping[int, int]]:
        """How many elements of each first gradient have which binary exponent."""
        return {n: c for step in self.before.steps for n, c in step.spread.items()}


def _turned(counts: Mapping[int, int], noise: float, eps: float = 0.0) -> float:
    """How many elements ``noise`` may turn around in Adam's first step, ``g / (abs(g) + eps)``;
    one that only changes counts by the square of its change. Those with exponent e are at least
    2 ** (e - 1)."""
    total = 0.0
    for exponent, count in counts.items():
        size = math.ldexp(0.5, exponent)
        change = min(2.0, noise * eps / (size + eps) ** 2) if size >= noise else 2.0
        total += count * (change / 2) ** 2
    return total


@dataclass(frozen=True)
class Distances:
    """How far apart named tensors are: name -> (distance, norm of the reference). Never empty."""

    by_name: Mapping[str, tuple[float, float]]

    def __post_init__(self) -> None:
        if not self.by_name:
            raise ValueError("distances of nothing")

    @property
    def norm(self) -> float:
        """Norm of all finite references together."""
        return math.sqrt(math.fsum(n * n for _, n in self.by_name.values() if math.isfinite(n)))

    @property
    def together(self) -> float:
        """Relative distance of all tensors seen as one vector."""
        return ratio(math.sqrt(math.fsum(d * d for d, _ in self.by_name.values())), self.norm)

    def relative(self, name: str) -> float:
        """Relative distance of one."""
        return ratio(*self.by_name[name])

    def only(self, names: Iterable[str]) -> Distances | None:
        """Those of ``names`` that are there; None when none is."""
        kept = {name: self.by_name[name] for name in names if name in self.by_name}
        return Distances(kept) if kept else None


def distances(a: Tensors, b: Tensors) -> Distances | NothingShared:
    """Distances of the tensors that both have."""
    paired = pair(a.whole, b.whole)
    if isinstance(paired, NothingShared):
        return paired
    return Distances({n: (separation(x, y), x.norm) for n, (x, y) in paired.both.items()})


def ratio(distance: float, norm: float) -> float:
    """Distance over norm; zero for no distance, infinite for a distance from zero."""
    if distance == 0:
        return 0.0
    return distance / norm if norm else math.inf


def separation(a: Sketch, b: Sketch) -> float:
    """Estimated distance; infinite when only one side is finite, zero when neither is."""
    if a.is_finite() and b.is_finite():
        return a.distance(b)
    return 0.0 if a.is_finite() == b.is_finite() else float("inf")


def _entered_alike(before: Recording, after: Recording) -> Recording:
    """The migrated run, in which methods that are registered as forwards count as calls of their
    modules where that is what the original called: Lightning's Trainer calls the wrapper of FSDP1,
    and ``training_step`` itself where there is none."""
    pairs = zip(before.steps, after.steps, strict=False)
    there, first = next(((x, y) for x, y in pairs if y.by_methods), (None, None))
    if there is None or first is None or first.by_methods is None:
        return after
    if first.inputs == there.inputs or first.by_methods.inputs != there.inputs:
        return after
    rest = after.rest and dataclasses.replace(
        after.rest, moment=after.rest.moment and _by_methods(after.rest.moment)
    )
    return dataclasses.replace(after, steps=tuple(map(_by_methods, after.steps)), rest=rest)


def _by_methods(step: Step) -> Step:
    entered = step.by_methods
    return dataclasses.replace(step, **vars(entered), by_methods=None) if entered else step
