"""Element-wise differences of parameters that the ranks wrote to files."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fsdp_migrate.verify.compare.recording import Dump, Recording


@dataclass(frozen=True)
class Difference:
    """How far apart the elements of one parameter are, absolute."""

    typical: float
    """Root mean square. An adaptive optimizer divides by each element's own gradient, so rounding
    moves the few elements with the smallest gradients far: the largest difference says less."""
    largest: float
    size: float
    """Root mean square of the values themselves, before."""


def differences(a: Recording, b: Recording | None) -> dict[str, Difference] | None:
    """Differences between the parameters of ``a`` and ``b``, by name.

    None when either side wrote no values, when no name is in common, or when the values were
    written after different steps. Needs NumPy, which torch programs have; without it, None as well.
    """
    if b is None or not a.dumps or not b.dumps or len(a.steps) != len(b.steps):
        return None
    try:
        import numpy  # the tool itself does not depend on it
    except ImportError:
        return None
    mine, theirs = _assemble(a.dumps), _assemble(b.dumps)
    found = {}
    for name, values in mine.items():
        other = theirs.get(name)
        if other is not None and other.shape == values.shape and values.size:
            same = (values == other) | (numpy.isnan(values) & numpy.isnan(other))
            apart = numpy.abs(
                numpy.subtract(values, other, where=~same, out=numpy.zeros(same.shape))
            )
            finite = values[numpy.isfinite(values)]
            size = _typical(finite) if finite.size else 0.0
            found[name] = Difference(_typical(apart), _finite(apart.max()), size)
    return found or None


def _typical(values: Any) -> float:
    return _finite((values * values).mean() ** 0.5)


def _finite(value: float) -> float:
    """``value``, infinite for nan."""
    return float(value) if math.isfinite(value) else math.inf


def _assemble(dumps: Iterable[Dump]) -> dict[str, Any]:
    """Whole flattened parameters from the pieces of all ranks; only those without a gap."""
    import numpy as np

    whole: dict[str, Any] = {}
    filled: dict[str, Any] = {}
    for dump in dumps:
        data = dump.path.read_bytes()
        place = 0
        for name, (key, dtype, count, shape) in dump.index.items():
            size = count * (8 if dtype == "float64" else 4)
            values = np.frombuffer(data[place : place + size], dtype=dtype)
            place += size
            total = int(np.prod(shape, dtype=np.int64))
            start, stop = (int(part) for part in key.split(":"))
            whole.setdefault(name, np.zeros(total))[start:stop] = values
            filled.setdefault(name, np.zeros(total, dtype=bool))[start:stop] = True
    return {name: values for name, values in whole.items() if filled[name].all()}
