"""Sketches as the comparer sees them; :mod:`fsdp_migrate.verify.capture.sketch` makes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sketch:
    """Number of elements, sum, sum of squares, and projections on random signs."""

    count: int
    total: float
    squares: float
    projections: tuple[float, ...]

    @classmethod
    def read(cls, values: Sequence[float]) -> Sketch:
        """From the list in a record."""
        return cls(int(values[0]), values[1], values[2], tuple(values[3:]))

    @classmethod
    def add(cls, parts: Iterable[Sketch]) -> Sketch:
        """The sketch of several disjoint pieces together.

        Raises :class:`ValueError` when there are none.
        """
        parts = list(parts)
        if not parts:
            raise ValueError("no pieces")
        return cls(
            sum(part.count for part in parts),
            math.fsum(part.total for part in parts),
            math.fsum(part.squares for part in parts),
            tuple(
                math.fsum(column) for column in zip(*(p.projections for p in parts), strict=True)
            ),
        )

    @property
    def norm(self) -> float:
        """Euclidean norm, exact to double precision; may be nan or inf."""
        return math.sqrt(self.squares) if self.squares >= 0 else math.nan

    def distance(self, other: Sketch) -> float:
        """Estimated Euclidean distance, to about 25 %; exactly 0 for equal values."""
        return change(self, self, other, other, half=True)

    def is_finite(self) -> bool:
        """Whether there is no nan or infinity among the values."""
        return math.isfinite(self.squares)


def change(a0: Sketch, a1: Sketch, b0: Sketch, b1: Sketch, *, half: bool = False) -> float:
    """Estimated distance between the change from ``a0`` to ``a1`` and that from ``b0`` to ``b1``.

    Projections are linear, so the sketch of a change is the difference of two sketches. With
    ``half``, the distance between ``a1`` and ``b1`` themselves.
    """
    squares = []
    for p0, p1, q0, q1 in zip(
        a0.projections, a1.projections, b0.projections, b1.projections, strict=True
    ):
        difference = p1 - q1 if half else (p1 - p0) - (q1 - q0)
        squares.append(difference * difference)
    return math.sqrt(math.fsum(squares) / len(squares))


def length(start: Sketch, end: Sketch) -> float:
    """Estimated norm of the change from ``start`` to ``end``."""
    return start.distance(end)
