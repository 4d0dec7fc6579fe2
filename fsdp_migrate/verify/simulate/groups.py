"""Process groups of NCCL that are gloo's."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist

from fsdp_migrate.verify.capture.session import replace
from fsdp_migrate.verify.inject.imports import after_import
from fsdp_migrate.verify.simulate.arguments import device, on_cpu


def install() -> None:
    """Patch what makes and uses groups, scalers and autocast regions."""
    if dist.is_available():
        _groups()
        after_import("torch.distributed.device_mesh", _meshes_imported)
    _autocast()
    for name in ("torch.amp.grad_scaler", "torch.distributed.fsdp.sharded_grad_scaler"):
        after_import(name, _scaler_imported)


def _backend(given: Any) -> Any:
    """gloo for nccl, alone or as a part of ``cpu:gloo,cuda:nccl``; None means both."""
    return "gloo" if given is None or "nccl" in str(given).lower() else given


def _groups() -> None:
    from torch.distributed import distributed_c10d as c10d

    def init_process_group(
        original: Any, /, backend: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        kwargs.pop("device_id", None)
        kwargs.pop("pg_options", None)
        original(_backend(backend), *args, **kwargs)

    def new_group(
        original: Any, /, ranks: Any = None, timeout: Any = None, backend: Any = None, **kw: Any
    ) -> Any:
        for name in ("device_id", "pg_options"):
            kw.pop(name, None)
        backend = backend if backend is None else _backend(backend)
        return original(ranks, timeout, backend, **kw)

    def barrier(original: Any, /, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_ids", None)
        return original(*args[:2], **kwargs)

    replace(c10d, "init_process_group", init_process_group)
    replace(c10d, "new_group", new_group)
    replace(c10d, "barrier", barrier)
    replace(c10d, "is_nccl_available", lambda original: True)
    for name in ("init_process_group", "new_group", "barrier", "is_nccl_available"):
        setattr(dist, name, getattr(c10d, name))


def _meshes_imported(name: str) -> None:
    module = sys.modules[name]

    def mesh(original: Any, /, device_type: str, *args: Any, **kwargs: Any) -> Any:
        return original(on_cpu(device_type), *args, **kwargs)

    def init(original: Any, /, self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        original(self, on_cpu(device_type), *args, **kwargs)

    replace(module, "init_device_mesh", mesh)
    replace(module.DeviceMesh, "__init__", init)
    vars(dist)["init_device_mesh"] = module.init_device_mesh


def _autocast() -> None:
    def init(
        original: Any, /, self: Any, device_type: str, dtype: Any = None, *args: Any, **kw: Any
    ) -> None:
        if device_type == "cuda":
            # The default of CUDA; that of the CPU is bfloat16.
            device_type, dtype = "cpu", dtype or torch.float16
        original(self, device_type, dtype, *args, **kw)

    replace(torch.autocast, "__init__", init)


def _scaler_imported(name: str) -> None:
    kind = "ShardedGradScaler" if "sharded" in name else "GradScaler"

    def init(
        original: Any, /, self: Any, device_type: str = "cuda", *args: Any, **kwargs: Any
    ) -> None:
        kwargs.pop("device", None)
        original(self, device(device_type), *args, **kwargs)

    replace(getattr(sys.modules[name], kind), "__init__", init)
