"""The record of what there is: parameters, units, buffers, states of optimizers."""

from __future__ import annotations

from typing import Any

import torch

from fsdp_migrate.verify.capture import fsdp_internals
from fsdp_migrate.verify.capture.discovery import World
from fsdp_migrate.verify.capture.fsdp_internals import Shard, Unsupported
from fsdp_migrate.verify.capture.session import Session
from fsdp_migrate.verify.capture.sketch import Sketcher


class Inventory:
    """Writes ``model`` records and the sketches that go with them."""

    def __init__(self, session: Session, sketcher: Sketcher) -> None:
        self.session = session
        self.sketcher = sketcher

    def write(self, kind: str, world: World, shards: dict[str, Shard]) -> None:
        """A ``model`` record of ``world``, and a record ``kind`` with values."""
        try:
            units = [(model, unit) for model, unit in world.units() if unit.shards]
        except Unsupported:  # said already
            units = []
        self.session.recorder.write(
            "model",
            models=[type(model.module).__name__ for model in world.models],
            deferred=self.session.deferred,
            parameters={
                name: {
                    "shape": list(shard.piece.shape),
                    "dtype": str(shard.data.dtype)[6:],
                    "trains": shard.requires_grad,
                    "kind": shard.kind,
                    "count": shard.data.numel(),
                }
                for name, shard in shards.items()
            },
            units=[
                {
                    "module": model.paths[id(unit.module)],
                    "kind": unit.shards[0].kind,
                    "names": sorted(model.name(shard.slots) for shard in unit.shards),
                    "param_dtype": str(unit.param_dtype or unit.shards[0].data.dtype)[6:],
                    "reduce_dtype": str(
                        unit.reduce_dtype or unit.param_dtype or unit.shards[0].data.dtype
                    )[6:],
                }
                for model, unit in units
            ],
        )
        recorder = self.session.recorder
        recorder.write(kind, params=self.sketches(shards), buffers=self.buffers(world))

    def sketches(self, shards: dict[str, Shard]) -> dict[str, list[Any]]:
        """Name -> key of the piece and sketch of its values."""
        return {
            name: [shard.piece.key, self.sketcher.sketch(name, shard.piece, shard.data)]
            for name, shard in shards.items()
        }

    def buffers(self, world: World) -> dict[str, list[Any]]:
        """Name -> dtype, shape, sum and sum of squares."""
        result: dict[str, list[Any]] = {}
        for name, buffer in world.buffers().items():
            values = fsdp_internals.local_part(buffer).detach().reshape(-1).to(torch.float64)
            total, squares = (
                (float(values.sum()), float(values.dot(values))) if values.numel() else (0, 0)
            )
            result[name] = [str(buffer.dtype)[6:], list(buffer.shape), total, squares]
        return result

    def states(
        self, optimizer: torch.optim.Optimizer, shards: dict[str, Shard]
    ) -> dict[str, list[Any]]:
        """``name/state`` -> piece and sketch, for what the optimizer remembers of each parameter.

        Only a resumed program remembers anything before its first step. Tensors without dimensions
        (Adam's ``step``) have the key ``scalar``.
        """
        found: dict[str, list[Any]] = {}
        for name, shard in shards.items():
            for key, value in optimizer.state.get(shard.owner, {}).items():
                if isinstance(value, torch.Tensor) and value.dim():
                    local = fsdp_internals.state_part(shard, value)
                    sketch = self.sketcher.sketch(name, shard.piece, local)
                    found[f"{name}/{key}"] = [shard.piece.key, sketch]
                elif isinstance(value, torch.Tensor | int | float):
                    is_tensor = isinstance(value, torch.Tensor)
                    number = float(fsdp_internals.local_part(value) if is_tensor else value)
                    found[f"{name}/{key}"] = ["scalar", [1, number, number * number, *[number] * 8]]
        return found
