"""The record of an optimizer step: what went in, what came out."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch

from fsdp_migrate.verify.capture import dump, fsdp_internals, noise
from fsdp_migrate.verify.capture.discovery import World
from fsdp_migrate.verify.capture.fsdp_internals import Shard, Unsupported
from fsdp_migrate.verify.capture.held import Held
from fsdp_migrate.verify.capture.inventory import Inventory
from fsdp_migrate.verify.capture.session import Session, replace
from fsdp_migrate.verify.capture.sketch import Sketcher, exponents

# Choices of implementation, not of mathematics.
_NOT_COMPARED = frozenset({"params", "foreach", "fused", "capturable", "differentiable"})


@dataclass
class _Step:
    """A step under way. Several optimizers share one when they step inside backward."""

    rng: int
    gradients: dict[str, Any] = field(default_factory=dict)
    spread: dict[str, Any] = field(default_factory=dict)
    settings: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    states: dict[str, Any] = field(default_factory=dict)


class Steps:
    """Hooks before and after every ``Optimizer.step``."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.sketcher = Sketcher()
        self.inventory = Inventory(session, self.sketcher)
        self.held = Held(session, self.sketcher)
        self.world: World | None = None
        self._callers = 0
        """How many modules had been called when the world was last looked at."""
        self._known: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        """An optimizer -> its number in order of first use."""
        self._count = 0
        self._groups: dict[int, list[list[int]]] = {}
        """Number of an optimizer -> ids of the parameters in its groups, as last written."""
        self._spread: set[str] = set()
        """Names of the parameters of which a gradient has been seen."""
        self._open: _Step | None = None
        self._fills_states = False
        """Whether torch is taking a step of zeros, which trains nothing."""
        session.leave_model = self._write_model

    def install(self) -> None:
        """Register the hooks for every optimizer there is and will be."""
        from torch.optim import optimizer

        optimizer.register_optimizer_step_pre_hook(fsdp_internals.eager(self._before))
        optimizer.register_optimizer_step_post_hook(fsdp_internals.eager(self._after))

    def install_state_dict(self, module: str) -> None:
        """Tell the step by which torch makes the states of an optimizer that has none yet.

        ``_init_optim_state`` of torch/distributed/checkpoint/state_dict.py takes it with gradients
        and learning rates of zero, before a state is given or loaded.
        """
        replace(sys.modules[module], "_init_optim_state", self._fill_states)

    def _fill_states(self, original: Callable[..., None], /, *args: Any, **kwargs: Any) -> None:
        self._fills_states = True
        try:
            original(*args, **kwargs)
        finally:
            self._fills_states = False

    # --- the model -------------------------------------------------------------------------------

    def first_look(self) -> None:
        """Find and record the models, once; called before the first backward."""
        if self.world is None and not self.session.config.timing:
            self._look()
            assert self.world is not None
            self.inventory.write("init", self.world, self._shards())

    def _look_again(self) -> None:
        """Record the models that are there by now, beside those that were seen before."""
        self._look()
        assert self.world is not None
        self.inventory.write("seen", self.world, self._shards())

    def _look(self) -> None:
        self._callers = self.session.explorer.callers
        try:
            self.world = self.session.explorer.look()
        except Unsupported as error:
            self.session.say_once("unsupported", str(error))
            self.world = World([], [])

    def _shards(self) -> dict[str, Shard]:
        assert self.world is not None
        try:
            return self.world.shards()
        except Unsupported as error:
            self.session.say_once("unsupported", str(error))
            return {}

    # --- the steps -------------------------------------------------------------------------------

    def backward_begins(self) -> None:
        """Called at the start of every outermost backward."""
        session = self.session
        session.extent.begin()
        session.goes_on()
        self.first_look()
        if self._callers < session.explorer.callers and not session.quiet:
            self._look_again()  # a model that was built since then, or a part called by itself

    def backward_ends(self) -> None:
        """Called at the end of every outermost backward: steps taken inside it make one step."""
        if self._open is not None and not self.session.optimizer_depth:
            self._close()

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        session = self.session
        if self._fills_states:
            return None
        session.optimizer_depth += 1
        if session.optimizer_depth > 1:  # a wrapper around another optimizer
            return None
        session.attempt("identify", session.identify)
        if self._open is None:  # where there is no call of backward, a step begins here
            session.goes_on()
        if session.quiet:
            self._open = self._open or _Step(0)
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            session.attempt("before step", self._record_gradients, optimizer)
            return None
        recorded = self._recorded(closure, optimizer)
        if len(args) > 1:
            return (args[0], recorded, *args[2:]), kwargs
        return args, {**kwargs, "closure": recorded}

    def _recorded(self, closure: Any, optimizer: torch.optim.Optimizer) -> Any:
        """``closure``, after whose first call the gradients of the step are known."""
        calls = 0

        def evaluate(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            loss = closure(*args, **kwargs)
            calls += 1
            if calls == 1:
                self.session.attempt("closure", self._record_gradients, optimizer)
            return loss

        return evaluate

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        del optimizer, args, kwargs
        session = self.session
        if self._fills_states:
            return
        session.optimizer_depth -= 1
        if not session.optimizer_depth and not session.backward_depth:
            self._close()

    def _close(self) -> None:
        session = self.session
        if session.config.timing:
            session.attempt("after step", session.record_time)
        elif not session.quiet:
            session.attempt("after step", self._record_step)
        self._open = None
        session.steps += 1
        session.extent.step_ends(session.steps, session.recorder.rank)
        session.beat("-", "LEFT")

    def _record_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        session = self.session
        self.first_look()
        shards = self._shards()
        fresh = optimizer not in self._known
        if fresh:
            self._known[optimizer] = self._count
            self._count += 1
            if optimizer not in (self.world.optimizers if self.world else []):
                self._look_again()
                shards = self._shards()
        number = self._known[optimizer]
        groups = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
        if self._groups.get(number) != groups:
            self._groups[number] = groups
            self._write_optimizer(optimizer, shards)
        held = {key for group in groups for key in group}
        mine = {name: shard for name, shard in shards.items() if id(shard.owner) in held}
        settings = session.config.noise
        if settings is not None:
            noise.perturb_gradients(mine, settings, session.steps)
        if self._open is None:
            self._open = _Step(zlib.crc32(torch.get_rng_state().numpy().tobytes()))
        step, sketch = self._open, self.sketcher.sketch
        for name, shard in mine.items():
            if shard.grad is not None and name not in self._spread:
                self._spread.add(name)
                step.spread[name] = exponents(shard.grad)
        if fresh:
            step.states |= self.inventory.states(optimizer, mine)
        step.gradients |= {
            name: None
            if shard.grad is None
            else [shard.piece.key, sketch(name, shard.piece, shard.grad)]
            for name, shard in mine.items()
        }
        step.settings[number] = [_settings(group) for group in optimizer.param_groups]

    def _record_step(self) -> None:
        session, step = self.session, self._open
        if step is None:
            raise RuntimeError("an optimizer step whose beginning was not seen")
        session.recorder.write(
            "step",
            n=session.steps,
            rng=step.rng,
            gradients=step.gradients,
            spread=step.spread,
            states=step.states,
            settings=step.settings,
            **session.take_step_facts(),
        )
        shards = self._shards()
        params = {name: shards[name] for name in step.gradients if name in shards}
        assert self.world is not None
        session.recorder.write(
            "after",
            n=session.steps,
            params=self.inventory.sketches(params),
            buffers=self.inventory.buffers(self.world),
        )
        last = session.extent.is_reached(session.steps + 1)
        if last or dump.is_small(shards):
            self.held.write(self.world, shards)
            # The program may end before that, so a small model is written after every step.
            session.recorder.write("dump", n=session.steps, **dump.write(session.recorder, shards))

    def _write_model(self) -> None:
        """What the models are when the program ends or is stopped: something may have changed their
        weights after the last step."""
        if self.world is not None:
            self.session.recorder.write(
                "final",
                params=self.inventory.sketches(self._shards()),
                buffers=self.inventory.buffers(self.world),
            )

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
            n=self._known[optimizer],
            since=self.session.steps,
            inside=bool(self.session.backward_depth),
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
