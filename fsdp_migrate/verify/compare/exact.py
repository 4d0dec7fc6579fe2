"""Element-wise differences of parameters that the ranks wrote to files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fsdp_migrate.verify.compare.recording import Dump, Recording


def differences(a: Recording, b: Recording | None) -> dict[str, tuple[float, float]] | None:
    """Largest absolute difference and largest absolute value of ``a``, by parameter name.

    None when either side wrote no values, when no name is in common, or when the values were
    written after different steps. Needs NumPy, which torch programs have; without it, None as well.
    """
    if b is None or not a.dumps or not b.dumps or len(a.steps) != len(b.steps):
        return None
    try:
        import numpy  # noqa: F401 - the tool itself does not depend on it
    except ImportError:
        return None
    mine, theirs = _assemble(a.dumps), _assemble(b.dumps)
    found = {}
    for name, values in mine.items():
        other = theirs.get(name)
        if other is not None and other.shape == values.shape and values.size:
            found[name] = (_largest(values - other, values, other), _largest(values))
    return found or None


def _largest(values: Any, *sides: Any) -> float:
    """Largest magnitude; infinite for nan, unless all of ``sides`` are nan at that place."""
    import numpy as np

    if sides:
        broken = np.logical_and.reduce([np.isnan(side) for side in sides])
        values = np.where(broken, 0.0, values)
    largest = float(np.max(np.abs(values)))
    return largest if np.isfinite(largest) else float("inf")


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
