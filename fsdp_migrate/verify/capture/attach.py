"""Put all hooks in place, as the modules of torch get imported."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch

from fsdp_migrate.verify import simulate
from fsdp_migrate.verify.capture import (
    activations,
    autograd,
    batches,
    clipping,
    collectives,
    cpu_patches,
    drawing,
    exits,
    forced,
    fsdp_internals,
    modes,
    noise,
    origin,
    precision,
    reporting,
    seeding,
    spawning,
)
from fsdp_migrate.verify.capture.fsdp1_uses import Uses
from fsdp_migrate.verify.capture.given import Given
from fsdp_migrate.verify.capture.optimizers import Steps
from fsdp_migrate.verify.capture.session import Session, replace
from fsdp_migrate.verify.inject.config import FSDP1, FSDP2, Config, Precision
from fsdp_migrate.verify.inject.imports import after_import


class _Hooks:
    """The hooks of this process."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.session = Session(config)
        self.steps = Steps(self.session)
        self.scaled = autograd.Scaled()
        self.on_cpu = self.session.device == "cpu"
        self.forced = config.precision is not Precision.NATIVE
        self.begun = False
        self.perturbed = False
        self.given = Given(self.session)
        self.watched: WeakSet[torch.nn.Module] = WeakSet()

    # --- torch -----------------------------------------------------------------------------------

    def torch_imported(self) -> None:
        session = self.session
        if self.config.simulate:
            simulate.install(self.config.devices)
            session.say_once("patch", simulate.PATCH)
        after_import("numpy", lambda _: seeding.seed(session.config.seed))
        seeding.seed(session.config.seed)
        precision.install(session)
        if self.forced:
            forced.install_autocast()
        if self.config.precision is Precision.STORED_FLOAT32:
            forced.install_stored()
        if self.config.simulate or self.config.precision is Precision.STORED_FLOAT32:
            modes.spare_recorder(session)
        autograd.install(session, self.scaled, self._backward_begins, self.steps.backward_ends)
        after_import(activations.MODULE, lambda _: activations.install(session))
        clipping.install(session)
        if self.on_cpu:
            cpu_patches.install_means(lambda what: session.say_once("patch", what))
        collectives.install(session)
        exits.install(session)
        reporting.install(session)
        after_import("torch.distributed.tensor._random", lambda _: drawing.install(session))
        after_import("torch.nn.parallel.distributed", self._ddp_imported)
        samplers = self.steps.held.install_samplers
        after_import("torch.utils.data.distributed", lambda _: samplers())
        if torch.distributed.is_available():
            spawning.install_own(session)
        after_import("torch.multiprocessing.spawn", lambda _: spawning.install(session))
        self.steps.install()
        after_import("torch.distributed.checkpoint.state_dict", self.steps.install_state_dict)
        after_import(
            "torch.distributed._functional_collectives",
            lambda _: collectives.install_functional(session),
        )
        after_import("torch.utils.data.dataloader", lambda _: batches.install_loader(session))
        for module in ("torch.amp.grad_scaler", "torch.distributed.fsdp.sharded_grad_scaler"):
            after_import(module, self._scaler_imported)
        if self.on_cpu:
            cpu_patches.install_torch(session)

    def _scaler_imported(self, name: str) -> None:
        kind = "ShardedGradScaler" if "sharded" in name else "GradScaler"
        autograd.install_scaler(self.session, self.scaled, getattr(sys.modules[name], kind))

    # --- FSDP ------------------------------------------------------------------------------------

    def fsdp1_imported(self) -> None:
        wrapper = sys.modules[FSDP1].FullyShardedDataParallel
        if self.on_cpu:
            cpu_patches.install_fsdp1(self.session)
        if self.config.precision is Precision.STORED_FLOAT32:
            modes.spare(*fsdp_internals.fsdp1_at_work())
        clipping.install_fsdp1(self.session, wrapper)

        def init(original: Any, /, wrapped: Any, module: Any, *args: Any, **kwargs: Any) -> None:
            self._given(module)
            if kwargs.get("sync_module_states", args[_SYNC_PLACE : _SYNC_PLACE + 1] == (True,)):
                self.given.synced = True
            if self.forced:
                place = _PRECISION_PLACE
                if len(args) > place:
                    full = forced.policy(args[place])
                    args = (*args[:place], full, *args[place + 1 :])
                elif "mixed_precision" in kwargs:
                    kwargs["mixed_precision"] = forced.policy(kwargs["mixed_precision"])
            original(wrapped, module, *args, **kwargs)
            # `wrapper.module.generate(...)` calls the model and not the wrapper.
            if not isinstance(module, wrapper):
                self._watch_calls(module)

        replace(wrapper, "__init__", init)
        self._watch_forward(wrapper)
        if self.config.observe:
            session = self.session
            Uses(self.config.tree, session.recorder.write, lambda: session.steps).install()

    def _ddp_imported(self, name: str) -> None:
        self._watch_forward(sys.modules[name].DistributedDataParallel)

    def _watch_forward(self, wrapper: Any) -> None:
        """Note the calls of a class of wrappers."""
        enter = fsdp_internals.eager(self._enter)
        leave = fsdp_internals.eager(batches.leaving)

        def forward(original: Any, /, module: Any, *args: Any, **kwargs: Any) -> Any:
            outermost = enter(module, args, kwargs)
            output = None
            try:
                output = original(module, *args, **kwargs)
                return output
            finally:
                if outermost:
                    leave(self.session, module, output)

        replace(wrapper, "forward", forward)

    def fsdp2_imported(self) -> None:
        if self.config.precision is Precision.STORED_FLOAT32:
            modes.spare(*fsdp_internals.fsdp2_at_work())

        def fully_shard(original: Any, /, module: Any, *args: Any, **kwargs: Any) -> Any:
            if self.on_cpu:
                kwargs = cpu_patches.unpinned(self.session, kwargs)
            if self.forced and "mp_policy" in kwargs:
                kwargs = {**kwargs, "mp_policy": forced.policy(kwargs["mp_policy"])}
            self._given(module)
            result = original(module, *args, **kwargs)
            for each in module if isinstance(module, list | tuple) else [module]:
                self._watch_calls(each)
            return result

        def register(original: Any, module: Any, method_name: str) -> None:
            original(module, method_name)
            if isinstance(module, sys.modules[FSDP2].FSDPModule):
                self._watch_method(module, method_name)

        replace(sys.modules[FSDP2], "fully_shard", fully_shard)
        replace(sys.modules[FSDP2], "register_fsdp_forward_method", register)

    def _watch_calls(self, module: torch.nn.Module) -> None:
        """Note the calls of one module."""
        if module in self.watched:
            return
        self.watched.add(module)
        # In front of FSDP's own hook, which casts the inputs and gathers parameters.
        module.register_forward_pre_hook(Watch(self._pre), prepend=True, with_kwargs=True)
        module.register_forward_hook(Watch(self._post))

    def _watch_method(self, module: torch.nn.Module, name: str) -> None:
        """Note the calls of a method that is registered as a forward."""
        registered = getattr(module, name)
        enter = fsdp_internals.eager(self._enter_method)
        leave = fsdp_internals.eager(batches.leaving_method)

        @functools.wraps(registered)
        def method(this: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            outermost = enter(this, args, kwargs)
            output = None
            try:
                output = registered(*args, **kwargs)
                return output
            finally:
                if outermost:
                    leave(self.session, output)

        setattr(module, name, types.MethodType(method, module))

    def _given(self, given: Any) -> None:
        """FSDP gets a module or several: are there parameters without values yet?"""
        modules = list(given) if isinstance(given, list | tuple) else [given]
        self.session.attempt("weights given", self.given.add, modules)
        if not self.session.deferred:
            self.session.deferred = any(p.is_meta for m in modules for p in m.parameters())

    # --- the run ---------------------------------------------------------------------------------

    def _pre(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        self._enter(module, args, kwargs)

    def _post(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        del args
        batches.leaving(self.session, module, output)

    def _enter(self, module: torch.nn.Module, args: Any, kwargs: Any) -> bool:
        return self._entered(batches.entering(self.session, module, args, kwargs))

    def _enter_method(self, module: torch.nn.Module, args: Any, kwargs: Any) -> bool:
        return self._entered(batches.entering_method(self.session, module, args, kwargs))

    def _entered(self, outermost: bool) -> bool:
        if outermost and not self.begun:
            self.begun = True
            self.session.attempt("first state", self._begin)
        if outermost and not self.perturbed and torch.is_grad_enabled():
            self.perturbed = True
            self.session.attempt("noise", self._perturb)
        return outermost

    def _begin(self) -> None:
        """Before the first forward: keep the state, or take over that of another run."""
        session = self.session
        session.identify()
        differs = self.given.differs()
        if differs and self.config.start is None:
            self.given.compare(session.explorer.look().shards().values())
        self.given.write()
        if self.config.start is None and not session.deferred and not differs:
            return
        world = session.explorer.look()
        if self.config.start is None:
            origin.write(session.recorder, world)
        else:
            missing = origin.take_over(Path(self.config.start), session.recorder.rank, world)
            if missing:
                some = ", ".join(missing[:3])
                session.say_once("unsupported", f"first values of {some} could not be taken over")
        # Now, not before the first backward: a forward updates buffers by what it computes with
        # weights that were drawn anew. Where ranks gave different ones the other side may have
        # been told to make them equal, and looks before the backward.
        if session.deferred or not differs:
            self.steps.first_look()

    def _backward_begins(self) -> None:
        if not self.perturbed:  # no wrapper was called: plain training
            self.perturbed = True
            self._perturb()
        self.steps.backward_begins()

    def _perturb(self) -> None:
        settings = self.config.noise
        if settings is not None:
            noise.perturb_parameters(self.session.explorer.look().shards(), settings)


class Watch:
    """A hook of a module, which a program may copy or save: the copy is watched no more, and the
    file needs nothing of this package."""

    def __init__(self, hook: Callable[..., None]) -> None:
        self._call = fsdp_internals.eager(hook)

    def __call__(self, *args: Any) -> None:
        self._call(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")  # does nothing, whatever it is given


# Of `mixed_precision` and `sync_module_states` among the positional arguments after `module`, in
# torch 2.4 to 2.15 alike.
_PRECISION_PLACE = 5
_SYNC_PLACE = 9

_hooks: _Hooks | None = None


def attach(name: str, config: Config) -> None:
    """Install the hooks that belong to the torch module ``name``, which was just imported."""
    global _hooks  # noqa: PLW0603 - the one recorder of this process
    if _hooks is None:
        _hooks = _Hooks(config)
    if name == "torch":
        _hooks.torch_imported()
    elif name == FSDP1:
        _hooks.fsdp1_imported()
    elif name == FSDP2:
        _hooks.fsdp2_imported()


def last_look() -> None:
    """Record the models as they are when an exception ends the program before its first backward:
    they often tell why (a parameter that no unit holds)."""
    if _hooks is not None:
        session = _hooks.session
        session.attempt("identify", session.identify)
        session.attempt("last look", _hooks.steps.first_look)
