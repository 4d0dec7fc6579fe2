"""What the ranks of one run recorded, put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fsdp_migrate.verify.compare.observed import NOTHING, Observed
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
    """An optimizer with its parameter groups, as they were from step ``since`` (from 0) on.

    ``number`` counts optimizers in order of first use. ``stale`` are shapes of parameters that no
    model owns. ``inside``: it steps inside backward.
    """

    kind: str
    held: int
    stale: tuple[tuple[int, ...], ...]
    gathered: int
    groups: tuple[tuple[str, ...], ...]
    number: int = 0
    since: int = 0
    inside: bool = False


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


Settings = Mapping[int, Sequence[Mapping[str, Any]]]
"""Number of an optimizer -> hyperparameters of each of its groups."""

Moments = tuple[float, float, float]
"""Number, sum and sum of squares of some values."""

Mode = tuple[int, int, int]
"""Modules in training mode, modules in evaluation mode, checksum of which."""


@dataclass(frozen=True)
class Entered:
    """What entered the models, and in which modes they were; see :class:`Step`."""

    inputs: tuple[tuple[int, ...], ...]
    evaluation_inputs: tuple[tuple[int, ...], ...]
    evaluation_outputs: tuple[tuple[Moments, ...], ...]
    modes: tuple[tuple[Mode, ...], ...]
    evaluation_modes: tuple[tuple[Mode, ...], ...]


@dataclass(frozen=True)
class Step:
    """One optimizer step; every field but ``number`` and those that say so has one entry per rank.

    When optimizers step inside backward, one step is one backward.
    """

    number: int
    losses: tuple[tuple[float, ...], ...]
    scaled: bool
    """Whether a gradient scaler multiplied any loss."""
    clips: tuple[tuple[Mapping[str, Any], ...], ...]
    inputs: tuple[tuple[int, ...], ...]
    batches: tuple[tuple[int, ...], ...]
    evaluation_inputs: tuple[tuple[int, ...], ...]
    evaluation_outputs: tuple[tuple[Moments, ...], ...]
    modes: tuple[tuple[Mode, ...], ...]
    """Of the model at every training forward."""
    random: tuple[int, ...]
    settings: tuple[Settings, ...]
    collectives: tuple[Mapping[tuple[str, str, str], tuple[int, int]], ...]
    gradients: Tensors
    states: Tensors
    """What an optimizer remembered before its first step here, as ``parameter/state``."""
    spread: Mapping[str, Mapping[int, int]]
    """Per parameter: binary exponent -> number of gradient elements, for the parameters of which
    this is the first gradient."""
    autocast: str | None
    """Of rank 0."""
    seconds: float
    """Of the slowest rank."""
    evaluation_modes: tuple[tuple[Mode, ...], ...] = ()
    """Of the model at every other forward."""
    evaluated: int = 0
    """Forwards on rank 0 of models that are trained, without gradients."""
    recomputed: tuple[int, ...] = ()
    """How many regions activation checkpointing computed again in backward."""
    by_methods: Entered | None = None
    """The same where a method that is registered as a forward counts as a call of its module. None
    where no such method was called."""

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


Part = tuple[tuple[int, ...], str, Sketch]
"""What a rank holds of a tensor: shape of the whole, which elements, their sketch."""


@dataclass(frozen=True)
class Held:
    """What the program's own variables held after step ``number``, by paths such as ``main.ema``.

    ``facts``: epochs of samplers and schedules, scales, for every rank. ``groups``: tensors named
    after parameters, each with what every rank holds of it.
    """

    number: int
    facts: tuple[Mapping[str, Any], ...]
    groups: Mapping[str, Mapping[str, tuple[Part | None, ...]]]
    unread: frozenset[str] = frozenset()
    """Variables that no rank's program reads any more."""


@dataclass(frozen=True)
class Rest:
    """What a run did after the last step that was recorded."""

    ended: bool
    """Whether the program came to its end by itself; else it was stopped when a step began."""
    steps: int
    """Optimizer steps by then: more than were recorded if it went on unrecorded."""
    moment: Step | None
    """What happened until it ended, was stopped, or went on unrecorded; None if the ranks were not
    at the same step."""
    models: Snapshot | None
    """The models at the end of ``moment``."""
    last: Snapshot | None = None
    """The models at the end of a program that went on unrecorded."""
    status: int = 0
    """The exit status of the first rank that had another one than 0."""


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
    optimizers_by_rank: tuple[tuple[Optimizer, ...], ...]
    """Every optimizer, again whenever its groups changed."""
    init: Snapshot
    """Every parameter and buffer as it was first seen."""
    steps: tuple[Step, ...]
    after: tuple[Snapshot, ...]
    dumps: tuple[Dump, ...]
    """One per rank; empty when the model was too large."""
    errors: tuple[str, ...]
    unsupported: tuple[str, ...]
    patches: tuple[str, ...]
    notes: tuple[str, ...]

    held: tuple[Held, ...] = ()
    """After every step, for small models; for large ones after the last."""

    simulated: bool = False
    """Whether CUDA and NCCL were imitated."""

    appeared: frozenset[str] = frozenset()
    """Parameters of models that were built when training had begun."""

    imported: frozenset[str] = frozenset()
    """The Python files of the tree that some rank imported, as paths below it."""

    executed: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """The lines of changed files that some process executed; of the migrated program only."""

    from_outside: tuple[tuple[str, str], ...] = ()
    """Files of the tree whose modules came from another place, and that place."""

    observed: Observed = NOTHING
    """Where the program used FSDP1; of the plain run of the original only."""
    drawn_alike: bool = False
    """Whether DTensors drew random numbers on CPUs: ranks seeded alike draw the same there."""

    deferred: bool = False
    """Whether weights were drawn only after FSDP got the model on the meta device."""

    given: tuple[int, ...] = ()
    """A fingerprint of the weights that each rank gave to FSDP, where ranks were left as different
    as they were (``sync_module_states`` makes them equal)."""

    rest: Rest | None = None

    def until(self, count: int) -> Recording:
        """The recording as if the program had been stopped after ``count`` steps."""
        if count >= len(self.steps):
            return self
        steps, after = self.steps[:count], self.after[:count]
        return dataclasses.replace(self, steps=steps, after=after, dumps=(), rest=None)

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """All optimizers of rank 0, as they were at their first step."""
        first: dict[int, Optimizer] = {}
        for optimizer in self.optimizers_by_rank[0]:
            first.setdefault(optimizer.number, optimizer)
        return tuple(first.values())

    @property
    def trainable(self) -> frozenset[str]:
        """Names of the parameters that require gradients."""
        return frozenset(name for name, p in self.parameters.items() if p.trains)

    def owned(self) -> frozenset[str]:
        """Names of the parameters that some optimizer holds on some rank."""
        return frozenset(
            name
            for rank in self.optimizers_by_rank
            for optimizer in rank
            for group in optimizer.groups
            for name in group
        )

    def settings(self, step: Step) -> dict[str, Mapping[str, Any]]:
        """Hyperparameters by parameter name, and the kind of the ``optimizer``, for the optimizers
        that took ``step``."""
        found: dict[str, Mapping[str, Any]] = {}
        for rank, optimizers in enumerate(self.optimizers_by_rank):
            for number, settings in step.settings[rank].items():
                valid = [o for o in optimizers if o.number == number and o.since <= step.number]
                if not valid:
                    continue
                optimizer = max(valid, key=lambda o: o.since)
                for names, values in zip(optimizer.groups, settings, strict=False):
                    for name in names:
                        found.setdefault(name, {"optimizer": optimizer.kind, **values})
        return found

    @cached_property
    def first_seen(self) -> Mapping[str, int]:
        """Parameter -> number of the first step that had a gradient for it."""
        found: dict[str, int] = {}
        for n, step in enumerate(self.steps):
            for name in step.gradients.whole:
                found.setdefault(name, n)
        return found

    @cached_property
    def first_gradients(self) -> Tensors:
        """Every parameter's first gradient. Not all come in the first step: several optimizers take
        turns, layers are unfrozen."""
        steps = self.steps
        return Tensors(
            {name: steps[n].gradients.by_name[name] for name, n in self.first_seen.items()}
        )

    @cached_property
    def first_updates(self) -> tuple[Tensors, Tensors]:
        """Every parameter before and after its first step."""
        starts, ends = {}, {}
        for name, n in self.first_seen.items():
            earlier = [s.params.by_name[name] for s in self.after[:n] if name in s.params.by_name]
            if name in self.after[n].params.by_name and name in self.init.params.by_name:
                starts[name] = earlier[-1] if earlier else self.init.params.by_name[name]
                ends[name] = self.after[n].params.by_name[name]
        return Tensors(starts), Tensors(ends)

    @cached_property
    def replicas(self) -> frozenset[frozenset[int]]:
        """Which ranks hold the same parts of the sharded parameters."""
        groups: dict[tuple[str, ...], set[int]] = {}
        sharded = sorted(name for name, p in self.parameters.items() if p.kind != "plain")
        for rank in range(self.world):
            pieces = [self.init.params.by_name[n][rank] for n in sharded]
            held = tuple(piece[0] if piece is not None else "" for piece in pieces)
            groups.setdefault(held, set()).add(rank)
        return frozenset(frozenset(ranks) for ranks in groups.values())

    @property
    def precision(self) -> str:
        """The coarsest dtype in which anything trainable was computed."""
        found = {unit.param_dtype for unit in self.units}
        found |= {p.dtype for p in self.parameters.values() if p.trains}
        found |= {step.autocast for step in self.steps if step.autocast}
        order: Sequence[str] = ("bfloat16", "float16", "float32", "float64")
        return next((dtype for dtype in order if dtype in found), "float32")

    @property
    def coarse(self) -> bool:
        """Whether it computes in 16 bits."""
        return self.precision in ("bfloat16", "float16")
