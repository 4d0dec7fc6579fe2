"""A few numbers that stand for a tensor, and that add up over ranks.

A sketch of a piece of a parameter is ``[count, sum, sum of squares, p0 .. p7]``. The ``p`` are
projections on random signs, in double precision; the sign of an element is a hash of the
parameter's name and the element's *global* flat index, so the sketches of all pieces of a
parameter, however it was cut, add up to the sketch of the whole. The mean square difference of the
projections of two tensors is an unbiased estimate of the square of their distance, with a relative
spread of about 25 % on the distance: good for thresholds, not for printing many digits.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch

PROJECTIONS = 8
_CHUNK = 1 << 18
_KEPT = 1 << 20
"""Elements whose columns are kept as they are multiplied: 72 bytes each, so 72 MiB in all."""


@dataclass(frozen=True)
class Piece:
    """Which elements of a parameter a rank holds: a box in its global shape.

    ``shape``: the parameter's global shape. ``flat``: True for a range ``[start, stop)`` of the
    flattened parameter given by ``offset[0]`` and ``size[0]`` (how FSDP1 cuts); False for the box
    that begins at ``offset`` and extends over ``size`` (how DTensor cuts).
    """

    shape: tuple[int, ...]
    offset: tuple[int, ...]
    size: tuple[int, ...]
    flat: bool

    @property
    def key(self) -> str:
        """The same text for the same elements; ``start:stop`` where they are contiguous."""
        span = self.span()
        if span is not None:
            return f"{span[0]}:{span[1]}"
        return f"{list(self.offset)}+{list(self.size)}"

    def span(self) -> tuple[int, int] | None:
        """The range of the flattened parameter, or None when the box is not one range."""
        if self.flat:
            return self.offset[0], self.offset[0] + self.size[0]
        if 0 in self.size:
            return 0, 0
        inner = 1
        for extent in self.shape[1:]:
            inner *= extent
        if self.size[1:] == self.shape[1:]:
            first = self.offset[0] * inner if self.shape else 0
            count = self.size[0] * inner if self.shape else 1
            return first, first + count
        return None

    def indices(self, device: torch.device) -> torch.Tensor:
        """Global flat indices of the elements, 1-D, int64, in the order of the local tensor."""
        span = self.span()
        if span is not None:
            return torch.arange(span[0], span[1], device=device)
        total = torch.zeros((), dtype=torch.int64, device=device)
        stride = 1
        for extent, offset, size in zip(
            reversed(self.shape), reversed(self.offset), reversed(self.size), strict=True
        ):
            steps = torch.arange(offset, offset + size, device=device) * stride
            total = steps.reshape(-1, *([1] * total.dim())) + total
            stride *= extent
        return total.reshape(-1)


_Key = tuple[str, Piece, torch.device]


class Sketcher:
    """Sketches pieces of parameters; remembers the signs, one byte per element."""

    def __init__(self) -> None:
        self._signs: dict[_Key, torch.Tensor] = {}
        self._columns: dict[_Key, torch.Tensor] = {}
        self._left = _KEPT
        self._tables: dict[torch.device, torch.Tensor] = {}

    def sketch(self, name: str, piece: Piece, local: torch.Tensor) -> list[float]:
        """The sketch of ``local``, the elements ``piece`` of parameter ``name``."""
        values = local.detach().reshape(-1)
        key = (name, piece, values.device)
        if 0 < values.numel() <= _CHUNK:  # nearly always, and the sums below cost more
            exact = values.to(torch.float64)
            first, *projections = (exact @ self._columns_of(key, 0, values.numel())).tolist()
            return [values.numel(), first, float(exact.dot(exact)), *projections]
        total = torch.zeros(2 + PROJECTIONS, dtype=torch.float64, device=values.device)
        for start in range(0, values.numel(), _CHUNK):
            chunk = values[start : start + _CHUNK].to(torch.float64)
            total[0] += chunk.dot(chunk)
            total[1:] += chunk @ self._columns_of(key, start, values.numel())
        squares, first, *projections = total.tolist()
        return [values.numel(), first, squares, *projections]

    def _columns_of(self, key: _Key, start: int, count: int) -> torch.Tensor:
        """Ones and the eight signs of each element from ``start`` on, of ``count`` in all. Those of
        small pieces are kept, for making them takes longer than using them."""
        columns = self._columns.get(key)
        if columns is None:
            signs = self._signs_of(key)[start : start + _CHUNK].long()
            ones = torch.ones(len(signs), 1, dtype=torch.float64, device=key[2])
            columns = torch.cat([ones, self._table(key[2])[signs]], dim=1)
            if count <= min(_CHUNK, self._left):
                self._left -= count
                self._columns[key] = columns
        return columns

    def _signs_of(self, key: _Key) -> torch.Tensor:
        name, piece, device = key
        if key not in self._signs:
            self._signs[key] = hashed(name, piece.indices(device)).to(torch.uint8)
        return self._signs[key]

    def _table(self, device: torch.device) -> torch.Tensor:
        """Row b holds the eight bits of b as +1 and -1."""
        if device not in self._tables:
            rows = torch.arange(256, device=device).unsqueeze(1)
            bits = (rows >> torch.arange(PROJECTIONS, device=device)) & 1
            self._tables[device] = bits.to(torch.float64) * 2 - 1
        return self._tables[device]


def hashed(name: str, indices: torch.Tensor, salt: int = 0) -> torch.Tensor:
    """Eight well-mixed bits (0..255, int64) for every index, the same on all devices and ranks.

    A finaliser in the manner of splitmix64, on wrapping int64.
    """
    h = indices * 0x2545F4914F6CDD1D + (zlib.crc32(name.encode()) + (salt << 33))
    h = (h ^ ((h >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    h = (h ^ ((h >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return (h >> 40) & 0xFF


def exponents(local: torch.Tensor) -> list[list[int]]:
    """How many elements have which binary exponent: ``[[exponent, count], ...]``, zeros left out.

    Summed over ranks it tells how much of a gradient is rounding noise: elements many powers of two
    below the largest. Adam turns such noise into full-size steps, so their updates prove nothing.
    """
    values = local.detach().reshape(-1).to(torch.float64)
    values = values[values != 0]
    values = values[torch.isfinite(values)]
    if values.numel() == 0:
        return []
    found, counts = torch.unique(torch.frexp(values).exponent, return_counts=True)
    return [[int(e), int(c)] for e, c in zip(found.tolist(), counts.tolist(), strict=True)]
