"""Line charts as SVG, with nothing but the text of the file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 880, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 14, 14, 34
_TICKS = 5
_FEW_POINTS = 60


@dataclass(frozen=True)
class Line:
    """A series over the steps. ``style`` names a class of the style sheet. Missing values are None
    or not finite."""

    name: str
    style: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class Band:
    """An area between two series."""

    name: str
    style: str
    low: Sequence[float]
    high: Sequence[float]


class Chart:
    """A chart over ``steps``, linear or logarithmic upwards."""

    def __init__(
        self, steps: Sequence[int], lines: Sequence[Line], bands: Sequence[Band] = (), *, log: bool
    ) -> None:
        self.steps, self.lines, self.bands, self.log = steps, lines, bands, log
        values = [v for line in lines for v in line.values if self._drawn(v)]
        values += [v for band in bands for v in (*band.low, *band.high) if self._drawn(v)]
        shown = [float(v) for v in values if v is not None]
        self.low, self.high = self._range(shown) if shown else (0.1, 1.0)

    def svg(self, title: str) -> str:
        """The picture, with ``title`` for those who cannot see it."""
        parts = [
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
            *self._grid(),
            *(self._area(band) for band in self.bands),
            *(self._path(line) for line in self.lines),
            "</svg>",
        ]
        return "\n".join(parts)

    def legend(self) -> str:
        """What the colours mean."""
        series: list[Line | Band] = [*self.lines, *self.bands]
        marks = [f'<span class="key {each.style}">{escape(each.name)}</span>' for each in series]
        return f'<p class="legend">{"".join(marks)}</p>'

    def _drawn(self, value: float | None) -> bool:
        if value is None or not math.isfinite(value):
            return False
        return value > 0 or not self.log

    def _range(self, values: Sequence[float]) -> tuple[float, float]:
        low, high = min(values), max(values)
        if self.log:
            return 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high) + 1e-9)
        room = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
        return low - room, high + room

    def _x(self, step: int) -> float:
        first, last = self.steps[0], self.steps[-1]
        share = (step - first) / (last - first) if last > first else 0.5
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    def _y(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = (math.log10(v) for v in (value, low, high))
        share = (value - low) / (high - low) if high > low else 0.5
        return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM), 1)

    def _grid(self) -> list[str]:
        parts = []
        for value, text in self._marks():
            y = self._y(value)
            parts.append(
                f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>'
            )
            parts.append(
                f'<text class="tick" x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{text}</text>'
            )
        stride = max(1, math.ceil(len(self.steps) / 10))
        for step in self.steps[::stride]:
            parts.append(
                f'<text class="tick" x="{self._x(step)}" y="{_HEIGHT - 12}" '
                f'text-anchor="middle">{step}</text>'
            )
        return parts

    def _marks(self) -> list[tuple[float, str]]:
        if self.log:
            low, high = round(math.log10(self.low)), round(math.log10(self.high))
            stride = max(1, math.ceil((high - low) / _TICKS))
            return [(10.0**e, f"1e{e}") for e in range(low, high + 1, stride)]
        raw = (self.high - self.low) / _TICKS
        unit = 10.0 ** math.floor(math.log10(raw))
        step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= raw)
        first = math.ceil(self.low / step)
        count = math.floor(self.high / step) - first + 1
        return [((first + n) * step, f"{(first + n) * step:.6g}") for n in range(count)]

    def _path(self, line: Line) -> str:
        runs: list[list[tuple[float, float, int, float]]] = [[]]
        for step, value in zip(self.steps, line.values, strict=True):
            if value is None or not self._drawn(value):
                runs.append([])
            else:
                runs[-1].append((self._x(step), self._y(value), step, value))
        parts = []
        for run in filter(None, runs):
            points = " ".join(f"{x},{y}" for x, y, _, _ in run)
            parts.append(f'<polyline class="{line.style}" points="{points}"/>')
            if len(self.steps) <= _FEW_POINTS:
                parts += [
                    f'<circle class="{line.style}" cx="{x}" cy="{y}" r="3">'
                    f"<title>step {step}, {escape(line.name)}: {value:.7g}</title></circle>"
                    for x, y, step, value in run
                ]
        return "".join(parts)

    def _area(self, band: Band) -> str:
        rows = [
            (self._x(step), self._y(low), self._y(high))
            for step, low, high in zip(self.steps, band.low, band.high, strict=True)
            if self._drawn(low) and self._drawn(high)
        ]
        points = [f"{x},{high}" for x, _, high in rows]
        points += [f"{x},{low}" for x, low, _ in reversed(rows)]
        return f'<polygon class="{band.style}" points="{" ".join(points)}"/>' if rows else ""
