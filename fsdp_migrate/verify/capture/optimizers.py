"""The record of an optimizer step: what went in, what came out."""

from __future__ import annotations

import zlib
from typing import Any

import torch

from fsdp_migrate.verify.capture import dump, fsdp_internals, noise
from fsdp_migrate.verify.capture.discovery import World, look_around
from fsdp_migrate.verify.capture.fsdp_internals import Shard, Unsupported
from fsdp_migrate.verify.capture.session import Session
from fsdp_migrate.verify.capture.sketch import Sketcher, exponents

# Choices of implementation, not of mathematics.
_NOT_COMPARED = frozenset({"params", "foreach", "fused", "capturable", "differentiable"})


class Steps:
    """Hooks before and after every ``Optimizer.step``."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.sketcher = Sketcher()
        self.world: World | None = None
        self._known: dict[int, int] = {}
        """id of an optimizer -> its number in order of first use."""
        self._current: dict[str, Shard] = {}

    def install(self) -> None:
        """Register the hooks for every optimizer there is and will be."""
        from torch.optim import optimizer

        optimizer.register_optimizer_step_pre_hook(self._before)
        optimizer.register_optimizer_step_post_hook(self._after)

    # --- the model -------------------------------------------------------------------------------

    def first_look(self) -> None:
        """Find and record the models, once; called before the first backward."""
        if self.world is None:
            self._look()
            self._write_model("init")

    def _look(self) -> World:
        try:
            self.world = look_around()
        except Unsupported as error:
            self.session.say_once("unsupported", str(error))
            self.world = World([], [])
        return self.world

    def _shards(self) -> dict[str, Shard]:
        assert self.world is not None
        try:
            return self.world.shards()
        except Unsupported as error:
            self.session.say_once("unsupported", str(error))
            return {}

    def _write_model(self, kind: str) -> None:
        world = self.world
        assert world is not None
        shards = self._shards()
        try:
            units = [(model, unit) for model, unit in world.units() if unit.shards]
        except Unsupported:  # said already
            units = []
        self.session.recorder.write(
            "model",
            models=[type(model.module).__name__ for model in world.models],
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
        self.session.recorder.write(kind, params=self._sketches(shards), buffers=self._buffers())

    def _sketches(self, shards: dict[str, Shard]) -> dict[str, list[Any]]:
        return {
            name: [shard.piece.key, self.sketcher.sketch(name, shard.piece, shard.data)]
            for name, shard in shards.items()
        }

    def _buffers(self) -> dict[str, list[Any]]:
        assert self.world is not None
        result: dict[str, list[Any]] = {}
        for name, buffer in self.world.buffers().items():
            values = fsdp_internals.local_part(buffer).detach().reshape(-1).to(torch.float64)
            total, squares = (
                (float(values.sum()), float(values.dot(values))) if values.numel() else (0, 0)
            )
            result[name] = [str(buffer.dtype)[6:], list(buffer.shape), total, squares]
        return result

    # --- the steps -------------------------------------------------------------------------------

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        session = self.session
        session.optimizer_depth += 1
        if session.optimizer_depth > 1:  # a wrapper around another optimizer
            return
        if session.backward_depth:
            session.say_once("unsupported", "optimizer steps taken inside backward")
        if args[1:] or kwargs.get("closure") is not None:
            session.say_once("unsupported", "an optimizer step with a closure")
        session.guard("identify", session.identify)
        session.guard("before step", self._record_before, optimizer)

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        session = self.session
        session.optimizer_depth -= 1
        if session.optimizer_depth:
            return
        session.guard("after step", self._record_after)
        session.steps += 1
        session.beat("-", "LEFT")
        if session.steps >= session.config.max_steps:
            session.stop()

    def _record_before(self, optimizer: torch.optim.Optimizer) -> None:
        session = self.session
        self.first_look()
        shards = self._shards()
        if id(optimizer) not in self._known:
            self._known[id(optimizer)] = len(self._known)
            if optimizer not in (self.world.optimizers if self.world else []):
                self._look()
                shards = self._shards()
                self._write_model("seen")
            self._write_optimizer(optimizer, shards)
        held = {id(p) for g in optimizer.param_groups for p in g["params"]}
        mine = {name: shard for name, shard in shards.items() if id(shard.owner) in held}
        settings = session.config.noise
        if settings is not None:
            noise.perturb_gradients(mine, settings, session.steps)
        sketch = self.sketcher.sketch
        gradients = {
            name: None
            if shard.grad is None
            else [shard.piece.key, sketch(name, shard.piece, shard.grad)]
            for name, shard in mine.items()
        }
        session.recorder.write(
            "step",
            n=session.steps,
            optimizer=self._known[id(optimizer)],
            rng=zlib.crc32(torch.get_rng_state().numpy().tobytes()),
            gradients=gradients,
            spread={
                name: exponents(shard.grad)
                for name, shard in mine.items()
                if session.steps == 0 and shard.grad is not None
            },
            settings=[_settings(group) for group in optimizer.param_groups],
            **session.take_step_facts(),
        )
        self._current = mine

    def _record_after(self) -> None:
        session = self.session
        shards = self._shards()
        session.recorder.write(
            "after",
            n=session.steps,
            params=self._sketches({name: shards[name] for name in self._current if name in shards}),
            buffers=self._buffers(),
        )
        last = session.steps + 1 >= session.config.max_steps
        if last or dump.is_small(shards):
            # The program may end before max_steps, so a small model is written after every step.
            session.recorder.write("dump", n=session.steps, **dump.write(session.recorder, shards))
        self._current = {}

    def _write_optimizer(self, optimizer: torch.optim.Optimizer, shards: dict[str, Shard]) -> None:
        owned: dict[int, list[str]] = {}
        for name, shard in shards.items():
            owned.setdefault(id(shard.owner), []).append(name)
        assert self.world is not None
        gathered = {
            id(tensor)
            for model in self.world.models
            for module in model.modules
            for tensor in fsdp_internals.gathered_parameters(module)
        }
        params = [p for group in optimizer.param_groups for p in group["params"]]
        stale = [p for p in params if id(p) not in owned]
        self.session.recorder.write(
            "optimizer",
            n=self._known[id(optimizer)],
            kind=type(optimizer).__name__,
            held=len(params),
            stale=[list(p.shape) for p in stale],
            gathered=sum(id(p) in gathered for p in stale),
            groups=[
                sorted(name for p in group["params"] for name in owned.get(id(p), []))
                for group in optimizer.param_groups
            ],
        )


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """The hyperparameters of a group, as JSON values."""
    return {k: _plain(v) for k, v in group.items() if k not in _NOT_COMPARED}


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 else str(tuple(value.shape))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return type(value).__name__
