"""Synthetic recordings: a small model on two ranks, written down as the recorder would."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import Any

from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.recording import (
    Optimizer,
    Parameter,
    Recording,
    Snapshot,
    Step,
    Tensors,
    Unit,
)
from fsdp_migrate.verify.compare.sketch import Sketch

NAMES = ("embed.weight", "layer.weight", "layer.bias")
SIZE = 64
WORLD = 2


def sketch(values: list[float], signs_seed: str) -> Sketch:
    """The sketch of ``values``; the same seed gives the same signs."""
    draw = random.Random(signs_seed)
    signs = [[draw.choice((-1.0, 1.0)) for _ in values] for _ in range(8)]
    projections = tuple(sum(s * v for s, v in zip(row, values, strict=True)) for row in signs)
    return Sketch(len(values), sum(values), sum(v * v for v in values), projections)


def tensors(values: dict[str, list[float]]) -> Tensors:
    """Named tensors, each cut in halves over two ranks."""
    half = SIZE // WORLD
    return Tensors(
        {
            name: tuple(
                (
                    f"{rank * half}:{(rank + 1) * half}",
                    sketch(whole[rank * half : (rank + 1) * half], f"{name}{rank}"),
                )
                for rank in range(WORLD)
            )
            for name, whole in values.items()
        }
    )


@dataclasses.dataclass
class Run:
    """A pretended training: what the optimizer sees, before it is written down."""

    steps: int = 4
    lr: float = 0.01
    follows: bool = False
    """Whether the rate falls where the norm of the gradients rises."""
    noise: float = 0.0
    clip: float | None = 1.0
    dtype: str = "float32"
    gradient_scale: float = 1.0
    scales: Mapping[str, float] = dataclasses.field(default_factory=dict)
    scatters: int = 2
    gathers: int = 5
    names: tuple[str, ...] = NAMES

    def record(self) -> Recording:
        """The recording of plain gradient descent on a quadratic."""
        draw = random.Random(1)
        jitter = random.Random(2)
        weights = {n: [draw.gauss(0, 1) for _ in range(SIZE)] for n in self.names}
        targets = {n: [draw.gauss(0, 1) for _ in range(SIZE)] for n in self.names}

        def shaken(value: float) -> float:
            return value * (1 + self.noise * jitter.choice((-1, 1)))

        init = self._snapshot(weights)
        steps, after = [], []
        for number in range(self.steps):
            gradients = {
                n: [
                    shaken((w - t) * self.gradient_scale * self.scales.get(n, 1.0))
                    for w, t in zip(weights[n], targets[n], strict=True)
                ]
                for n in self.names
            }
            loss = shaken(
                sum(
                    (w - t) ** 2
                    for n in self.names
                    for w, t in zip(weights[n], targets[n], strict=True)
                )
            )
            norm = sum(g * g for values in gradients.values() for g in values) ** 0.5
            rate = self.lr / (1 + norm) if self.follows else self.lr
            steps.append(self._step(number, loss, gradients, norm, rate))
            weights = {
                n: [w - rate * g for w, g in zip(weights[n], gradients[n], strict=True)]
                for n in self.names
            }
            after.append(self._snapshot(weights))
        return Recording(
            world=WORLD,
            torch="2.13.0",
            device="cpu",
            backend="gloo",
            models=("Net",),
            parameters={
                n: Parameter(n, (SIZE,), self.dtype, True, "fsdp", (SIZE // 2, SIZE // 2))
                for n in self.names
            },
            units=(
                Unit("layer", "fsdp", frozenset(self.names[1:]), self.dtype, self.dtype),
                Unit("", "fsdp", frozenset(self.names[:1]), self.dtype, self.dtype),
            ),
            optimizers_by_rank=((Optimizer("SGD", len(self.names), (), 0, (self.names,)),),)
            * WORLD,
            init=init,
            steps=tuple(steps),
            after=tuple(after),
            dumps=(),
            errors=(),
            unsupported=(),
            patches=(),
            notes=(),
        )

    def _snapshot(self, weights: dict[str, list[float]]) -> Snapshot:
        return Snapshot(tensors(weights), ({"scale": ("float32", (), 1.0, 1.0)},) * WORLD)

    def _step(
        self, number: int, loss: float, gradients: dict[str, list[float]], norm: float, rate: float
    ) -> Step:
        clips: tuple[Any, ...] = ()
        if self.clip is not None:
            clips = (
                {"by": "clip_grad_norm_", "bound": self.clip, "norm": norm, "combine": "whole"},
            )
        traffic = {
            ("forward", "all-gather", self.dtype): (2, 1024),
            ("backward", "all-gather", self.dtype): (self.gathers - 2, 1024),
            ("backward", "reduce-scatter", self.dtype): (self.scatters, 1024),
        }
        return Step(
            number=number,
            evaluation_inputs=((),) * WORLD,
            evaluation_outputs=((),) * WORLD,
            modes=(((5, 0, 1),),) * WORLD,
            states=Tensors({}),
            losses=((loss,),) * WORLD,
            scaled=False,
            clips=(clips,) * WORLD,
            inputs=((7,),) * WORLD,
            batches=((),) * WORLD,
            random=(11, 12),
            settings=({0: ({"lr": rate, "momentum": 0.0},)},) * WORLD,
            collectives=(traffic,) * WORLD,
            gradients=tensors(gradients),
            spread={},
            autocast=None,
            seconds=0.1,
        )


def evidence(**changes: Any) -> Evidence:
    """An original, a migrated run with ``changes``, and a twin with fp32 rounding noise."""
    return Evidence(Run().record(), Run(**changes).record(), Run(noise=2.0**-24).record())


def altered(change: Callable[[Recording], Recording]) -> Evidence:
    """Like :func:`evidence`, with the finished migrated recording passed through ``change``."""
    plain = evidence()
    return dataclasses.replace(plain, after=change(plain.after))


def with_steps(recording: Recording, **changes: Any) -> Recording:
    """Every step of ``recording`` with some fields replaced."""
    steps = tuple(dataclasses.replace(step, **changes) for step in recording.steps)
    return dataclasses.replace(recording, steps=steps)


def without(values: Tensors, *names: str) -> Tensors:
    """``values`` with some names missing."""
    return Tensors({n: v for n, v in values.by_name.items() if n not in names})
