"""What the ranks of one run recorded, put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fsdp_migrate.verify.compare.sketch import Sketch


@dataclass(frozen=True)
class Parameter:
    """One parameter by name. ``held`` counts its elements on each rank."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trains: bool
    kind: str
    held: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements of the whole parameter."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def copies(self) -> float:
        """How often the parameter is held over all ranks together: 1 when sharded over all."""
        return sum(self.held) / self.elements if self.elements else 1.0


@dataclass(frozen=True)
class Unit:
    """Parameters that are gathered and reduced together."""

    module: str
    kind: str
    names: frozenset[str]
    param_dtype: str
    reduce_dtype: str


@dataclass(frozen=True)
class Optimizer:
    """An optimizer at its first step. ``stale`` are shapes of parameters that no model owns."""

    kind: str
    held: int
    stale: tuple[tuple[int, ...], ...]
    gathered: int
    groups: tuple[tuple[str, ...], ...]


Pieces = tuple[str, Sketch]
"""Which elements (as text) and their sketch."""


@dataclass(frozen=True)
class Tensors:
    """Named tensors over all ranks: for each name, every rank's piece or None."""

    by_name: Mapping[str, tuple[Pieces | None, ...]]

    @cached_property
    def whole(self) -> Mapping[str, Sketch]:
        """The sketch of each whole tensor; elements held by several ranks count once.

        Names of which no rank has an element are left out.
        """
        result = {}
        for name, pieces in self.by_name.items():
            distinct = {key: sketch for key, sketch in filter(None, pieces) if sketch.count}
            if distinct:
                result[name] = Sketch.add(distinct.values())
        return result

    def divergence(self, name: str) -> float:
        """Largest relative distance between ranks that hold the same elements."""
        first: dict[str, Sketch] = {}
        worst = 0.0
        for key, sketch in filter(None, self.by_name[name]):
            known = first.setdefault(key, sketch)
            if known is not sketch and known.norm:
                worst = max(worst, known.distance(sketch) / known.norm)
        return worst


Buffer = tuple[str, tuple[int, ...], float, float]
"""Dtype, shape, sum and sum of squares."""


@dataclass(frozen=True)
class Snapshot:
    """All parameters and buffers at one moment. Buffers are per rank."""

    params: Tensors
    buffers: tuple[Mapping[str, Buffer], ...]


@dataclass(frozen=True)
class Step:
    """One optimizer step; every field but ``optimizer`` has one entry per rank."""

    optimizer: int
    losses: tuple[tuple[float, ...], ...]
    clips: tuple[tuple[Mapping[str, Any], ...], ...]
    inputs: tuple[tuple[int, ...], ...]
    batches: tuple[tuple[int, ...], ...]
    random: tuple[int, ...]
    settings: tuple[tuple[Mapping[str, Any], ...], ...]
    collectives: tuple[Mapping[tuple[str, str, str], tuple[int, int]], ...]
    gradients: Tensors
    spread: Mapping[str, Mapping[int, int]]
    """Per parameter: binary exponent -> number of gradient elements. First step only."""
    autocast: str | None
    seconds: float

    @property
    def loss(self) -> float:
        """What was differentiated in this step: micro-losses added, averaged over ranks."""
        return sum(sum(values) for values in self.losses) / len(self.losses)


@dataclass(frozen=True)
class Dump:
    """Exact parameter values in a file: name -> (key, dtype, elements, shape)."""

    path: Path
    index: Mapping[str, tuple[str, str, int, tuple[int, ...]]]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Recording:
    """One run."""

    world: int
    torch: str
    device: str
    backend: str
    models: tuple[str, ...]
    parameters: Mapping[str, Parameter]
    units: tuple[Unit, ...]
    optimizers: tuple[Optimizer, ...]
    init: Snapshot
    steps: tuple[Step, ...]
    after: tuple[Snapshot, ...]
    dumps: tuple[Dump, ...]
    """One per rank; empty when the model was too large."""
    errors: tuple[str, ...]
    unsupported: tuple[str, ...]
    patches: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def trainable(self) -> frozenset[str]:
        """Names of the parameters that require gradients."""
        return frozenset(name for name, p in self.parameters.items() if p.trains)

    def owned(self) -> frozenset[str]:
        """Names of the parameters that some optimizer holds."""
        return frozenset(n for o in self.optimizers for group in o.groups for n in group)

    def settings(self, step: Step) -> dict[str, Mapping[str, Any]]:
        """Hyperparameters by parameter name, for the optimizer that took ``step``."""
        groups = self.optimizers[step.optimizer].groups
        return {
            name: values
            for group, values in zip(groups, step.settings[0], strict=False)
            for name in group
        }

    @property
    def precision(self) -> str:
        """The coarsest dtype in which anything trainable was computed."""
        found = {unit.param_dtype for unit in self.units}
        found |= {p.dtype for p in self.parameters.values() if p.trains}
        found |= {step.autocast for step in self.steps if step.autocast}
        order: Sequence[str] = ("bfloat16", "float16", "float32", "float64")
        return next((dtype for dtype in order if dtype in found), "float32")
