"""Put all hooks in place, as the modules of torch get imported."""

from __future__ import annotations

import sys
from typing import Any

import torch

from fsdp_migrate.verify.capture import (
    autograd,
    batches,
    clipping,
    collectives,
    cpu_patches,
    noise,
    precision,
    seeding,
)
from fsdp_migrate.verify.capture.discovery import look_around
from fsdp_migrate.verify.capture.optimizers import Steps
from fsdp_migrate.verify.capture.session import Session, accelerator, replace
from fsdp_migrate.verify.inject.config import Config
from fsdp_migrate.verify.inject.imports import after_import

_FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"
_FSDP2 = "torch.distributed.fsdp._fully_shard._fully_shard"


class _Hooks:
    """The hooks of this process."""

    def __init__(self, config: Config) -> None:
        self.session = Session(config)
        self.steps = Steps(self.session)
        self.scaled = autograd.Scaled()
        self.on_cpu = accelerator() == "cpu"
        self.perturbed = False

    def torch_imported(self) -> None:
        session = self.session
        after_import("numpy", lambda _: seeding.seed(session.config.seed))
        seeding.seed(session.config.seed)
        autograd.install(session, self.scaled, self._before_first_backward)
        clipping.install(session)
        collectives.install(session)
        precision.install(session)
        self.steps.install()
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

    def fsdp1_imported(self) -> None:
        wrapper = sys.modules[_FSDP1].FullyShardedDataParallel
        if self.on_cpu:
            cpu_patches.install_fsdp1(self.session)
        clipping.install_fsdp1(self.session, wrapper)

        def make(original: Any) -> Any:
            def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
                outermost = self._enter(module, args, kwargs)
                try:
                    return original(module, *args, **kwargs)
                finally:
                    if outermost:
                        batches.leaving(self.session, module)

            return forward

        replace(wrapper, "forward", make)

    def fsdp2_imported(self) -> None:
        def make(original: Any) -> Any:
            def fully_shard(module: Any, *args: Any, **kwargs: Any) -> Any:
                if self.on_cpu:
                    kwargs = cpu_patches.unpinned(self.session, kwargs)
                result = original(module, *args, **kwargs)
                for each in module if isinstance(module, list | tuple) else [module]:
                    # In front of FSDP's own hook, which casts the inputs and gathers parameters.
                    each.register_forward_pre_hook(self._pre, prepend=True, with_kwargs=True)
                    each.register_forward_hook(self._post)
                return result

            return fully_shard

        replace(sys.modules[_FSDP2], "fully_shard", make)

    def _pre(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        self._enter(module, args, kwargs)

    def _post(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        del args, output
        batches.leaving(self.session, module)

    def _enter(self, module: torch.nn.Module, args: Any, kwargs: Any) -> bool:
        outermost = batches.entering(self.session, module, args, kwargs)
        if outermost and not self.perturbed and torch.is_grad_enabled():
            self.perturbed = True
            self.session.guard("noise", self._perturb)
        return outermost

    def _before_first_backward(self) -> None:
        if not self.perturbed:  # no FSDP module was called: plain or DDP training
            self.perturbed = True
            self._perturb()
        self.steps.first_look()

    def _perturb(self) -> None:
        settings = self.session.config.noise
        if settings is not None:
            noise.perturb_parameters(look_around().shards(), settings)


_hooks: _Hooks | None = None


def attach(name: str, config: Config) -> None:
    """Install the hooks that belong to the torch module ``name``, which was just imported."""
    global _hooks  # noqa: PLW0603 - the one recorder of this process
    if _hooks is None:
        _hooks = _Hooks(config)
    if name == "torch":
        _hooks.torch_imported()
    elif name == _FSDP1:
        _hooks.fsdp1_imported()
    elif name == _FSDP2:
        _hooks.fsdp2_imported()
