"""How large a difference may be.

A constant tolerance is wrong in both directions: a deep fp32 model amplifies rounding a
thousandfold in twenty steps, and a loss tolerance that forgives it would forgive real defects
elsewhere. So the original is run twice, the second time with rounding-size noise (the *twin*), and
a difference may be ``FACTOR`` times what that noise caused by the same step, or a floor below which
everything is rounding. But no more than a ceiling: where noise alone goes beyond it, nothing can be
told, and that is said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FACTOR = 5.0
"""Correct migrations stayed within 1.9 times the twin in all configurations measured."""

ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-9}
"""Relative size of the twin's noise, by the coarsest dtype the program computes in."""


@dataclass(frozen=True)
class Floors:
    """Relative differences below which nothing is judged, whatever the twin did."""

    first_loss: float
    loss: float
    norm: float
    gradient: float
    ceiling: float = 0.05
    """The most that noise may ever allow."""
    gradient_ceiling: float = 0.05
    """The same for all gradients together."""


_FINE = Floors(first_loss=1e-6, loss=1e-6, norm=1e-6, gradient=2e-6)

# In low precision a correct migration differs where gradients are accumulated without
# synchronisation: FSDP2 accumulates them in the dtype of the reduction, FSDP1 in that of the
# parameters (torch's own test of it: test_grad_acc_with_reduce_dtype). The forward of the first
# step is the same computation on both sides, in any precision. Rounding of 16 bits alone is a few
# percent of a gradient.
_COARSE = Floors(first_loss=1e-5, loss=5e-4, norm=5e-3, gradient=5e-3, gradient_ceiling=0.25)


def floors(precision: str) -> Floors:
    """The floors for a program whose coarsest compute dtype is ``precision``."""
    return _FINE if precision in ("float32", "float64") else _COARSE


@dataclass(frozen=True)
class Judged:
    """A measured difference beside what is allowed. ``where`` says what it is a difference of."""

    measured: float
    allowed: float
    twin: float | None
    where: str = ""
    hopeless: bool = False
    """Whether noise alone goes beyond the ceiling: being within the allowance says nothing."""

    @property
    def ok(self) -> bool:
        """Whether it is within the allowance. nan is not."""
        return self.measured <= self.allowed

    @property
    def excess(self) -> float:
        """Measured over allowed, for finding the worst."""
        if math.isnan(self.measured):
            return math.inf
        if not self.measured:
            return 0.0
        return self.measured / self.allowed if self.allowed else math.inf


def judge(
    measured: float,
    *,
    floor: float,
    twin: float | None,
    where: str = "",
    ceiling: float = math.inf,
) -> Judged:
    """Put ``measured`` beside the larger of the floor and the noise envelope."""
    noise = FACTOR * twin if twin is not None and math.isfinite(twin) else 0.0
    return Judged(measured, max(floor, noise), twin, where, noise > max(floor, ceiling))


def gap(before: float, after: float, *, scale: float = 0.0) -> float:
    """Relative difference; ``scale`` is the least the reference value counts for.

    Infinite when only one side is a finite number, zero when both sides are the same non-number.
    """
    if not math.isfinite(before) or not math.isfinite(after):
        same = before == after or (math.isnan(before) and math.isnan(after))
        return 0.0 if same else math.inf
    if before == after:
        return 0.0
    return abs(before - after) / max(abs(before), scale, 1e-30)


def worst(judged: list[Judged]) -> Judged:
    """The one that comes closest to its allowance, or exceeds it most.

    Raises :class:`ValueError` when there is none: nothing measured is not a pass.
    """
    if not judged:
        raise ValueError("nothing was measured")
    return max(judged, key=lambda j: (j.excess, j.measured))


def beyond(wrong: list[Judged]) -> tuple[str, ...]:
    """The first few differences that are larger than is allowed, as details of a gate."""
    return tuple(f"{j.where}: {j.measured:.1e}, allowed {j.allowed:.1e}" for j in wrong[:5])
