"""FSDP1 on the CPU, as the reference that migrated programs are compared with.

FSDP1 was made for accelerators. On the CPU it refuses one thing that works, and takes "to the CPU"
for a copy where it is none. What is replaced here says so; everything else is torch's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    _init_utils,
    fully_sharded_data_parallel,
)
from torch.distributed.fsdp._flat_param import FlatParamHandle


def allow() -> None:
    """Make FSDP1 behave on the CPU as it does on a GPU."""
    # sync_module_states broadcasts CPU tensors well, the check only knows of NCCL.
    checks: Any = _init_utils
    checks._check_module_states_for_sync_module_states = lambda _: None

    # offload_to_cpu frees the gathered parameter after copying it to the CPU: without a copy it
    # frees what it hands out, and the process dies.
    @contextlib.contextmanager
    def stay(_: FlatParamHandle) -> Iterator[None]:
        yield

    handle: Any = FlatParamHandle
    handle.to_cpu = stay

    # Likewise the gathered optimizer state would be one buffer under several names.
    module: Any = fully_sharded_data_parallel
    gather = module._optim_state_dict

    def gather_on_cpu(*args: Any, **kwargs: Any) -> dict[str, Any]:
        state: dict[str, Any] = gather(*args, **{**kwargs, "cpu_offload": False})
        return state

    module._optim_state_dict = gather_on_cpu


def forbid() -> None:
    """End a migrated program that still builds an FSDP1 model."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a migrated program called FullyShardedDataParallel")

    FullyShardedDataParallel.__init__ = refuse  # type: ignore[method-assign]
    for name in ("summon_full_params", "optim_state_dict", "set_state_dict_type"):
        setattr(FullyShardedDataParallel, name, refuse)
