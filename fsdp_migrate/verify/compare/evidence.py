"""The recordings that gates look at."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from fsdp_migrate.verify.compare.coverage import NothingShared, pair
from fsdp_migrate.verify.compare.envelope import Floors, floors
from fsdp_migrate.verify.compare.recording import Recording, Step, Tensors
from fsdp_migrate.verify.compare.sketch import Sketch

# Elements this many powers of two below the largest of their gradient are rounding noise (fp32 has
# 24 bits; sums lose a few more).
_NOISE_BITS = 20

# A gradient that rounding-size noise changes by more than this is noise altogether: that of a key
# bias in attention, for one, is zero mathematically.
_NOISY = 0.05


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
        spread = {n: c for step in self.before.steps for n, c in step.spread.items()}
        twin = self.twin.first_gradients.whole if self.twin else {}
        for name, gradient in self.before.first_gradients.whole.items():
            counts = spread.get(name, {})
            top = max(counts, default=0)
            tiny = sum(n for e, n in counts.items() if e < top - _NOISE_BITS)
            share = tiny / sum(counts.values()) if counts else 0.0
            noise = twin.get(name)
            if noise is not None and gradient.distance(noise) > _NOISY * gradient.norm:
                share = 1.0
            if share:
                shares[name] = share
        return shares


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
