"""What FSDP needs to run on a machine without an accelerator, in the original and the migrated run.

Each patch says so in the record when it takes effect, and the report lists it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from fsdp_migrate.verify.capture import fsdp_internals
from fsdp_migrate.verify.capture.session import Session, replace

DEVICE_ID = "FSDP1 was given device_id=cpu: otherwise it asks for an accelerator"
SYNC_CHECK = (
    "FSDP1's check that sync_module_states sees no CPU tensor was skipped; the states are broadcast"
)
TO_CPU = "FSDP1's offload of full parameters to the CPU keeps them in place: they are there already"
OFFLOADED = (
    "FSDP1 starts every reduced gradient anew where parameters are offloaded, as it does on a GPU; "
    "on the CPU it would add those of earlier steps"
)
CPU_COPY = "Tensor.cpu() copies, as it does from a GPU"
MEAN = (
    "where FSDP2 asks for the mean, gloo of this torch gives the sum (pytorch#162338): it was "
    "divided; trained on CPUs with this torch, FSDP2 has gradients that are too large"
)
UNPINNED = "CPUOffloadPolicy does not pin memory: there is no accelerator to pin it for"
_RESULTS = {
    "all_reduce": "tensor",
    "reduce": "tensor",
    "reduce_scatter": "output",
    "reduce_scatter_tensor": "output",
}
"""The parameter that holds the result of a collective."""


def install_torch(session: Session) -> None:
    """Make ``Tensor.cpu`` copy.

    Code that saves ``{k: v.cpu() ...}`` relies on that; FSDP1's full optimizer state even turns
    ``exp_avg`` into ``exp_avg_sq`` when the copy is an alias (``_optim_utils.py``).
    """

    def cpu(original: Any, /, self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        result: torch.Tensor = original(self, *args, **kwargs)
        if self.device.type != "cpu":
            return result
        session.say_once("patch", CPU_COPY)
        return result.clone()

    replace(torch.Tensor, "cpu", cpu)


def install_means(say: Callable[[str], None]) -> None:
    """Let gloo average, which it can from torch 2.13 on; before, it sums without a word, or refuses
    (https://github.com/pytorch/pytorch/issues/162338). ``say`` is told where that was so."""
    if not dist.is_available():
        return
    from torch.distributed import distributed_c10d as c10d

    can = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)

    def reduce(name: str, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not any(map(_is_mean, (*args, kwargs.get("op")))):
            return original(*args, **kwargs)
        group = next((a for a in args if isinstance(a, dist.ProcessGroup)), kwargs.get("group"))
        if dist.get_backend(group) != "gloo":
            return original(*args, **kwargs)
        if not can:
            say(MEAN)
        args = tuple(dist.ReduceOp.SUM if _is_mean(a) else a for a in args)
        if _is_mean(kwargs.get("op")):
            kwargs["op"] = dist.ReduceOp.SUM
        work = original(*args, **kwargs)
        if work is not None:
            work.wait()
        result = args[0] if args else kwargs[_RESULTS[name]]
        result.div_(dist.get_world_size(group))
        return work

    for name in _RESULTS:
        replace(c10d, name, functools.partial(reduce, name))
        setattr(dist, name, getattr(c10d, name))


def _is_mean(argument: Any) -> bool:
    """Whether an argument of a collective (a tensor, perhaps) is the operation that averages."""
    return not isinstance(argument, torch.Tensor | list) and argument == dist.ReduceOp.AVG


def install_fsdp1(session: Session) -> None:
    """Let ``FullyShardedDataParallel`` run without an accelerator."""
    from torch.distributed.fsdp.fully_sharded_data_parallel import (
        FullyShardedDataParallel,
    )

    # `device_id` is the tenth parameter after `self`, in torch 2.4 to 2.15 alike.
    place = 10

    def init(original: Any, /, self: Any, *args: Any, **kwargs: Any) -> None:
        given = kwargs.get("device_id")
        if len(args) > place - 1:
            given = args[place - 1]
        if given is None or not _is_cpu(given):
            session.say_once("patch", DEVICE_ID)
            if len(args) > place - 1:
                args = (*args[: place - 1], torch.device("cpu"), *args[place:])
            else:
                kwargs["device_id"] = torch.device("cpu")
        original(self, *args, **kwargs)

    def check(original: Any, module_states: list[torch.Tensor]) -> None:
        if any(state.device.type == "cpu" for state in module_states):
            session.say_once("patch", SYNC_CHECK)

    @contextmanager
    def to_cpu(original: Any, self: Any) -> Iterator[None]:
        # The original moves the parameter and then frees the "device" copy, which here is the
        # only one: reading it afterwards is a segmentation fault (FlatParamHandle.to_cpu).
        self._check_sharded_strategy()
        session.say_once("patch", TO_CPU)
        yield

    def prepare(original: Any, self: Any) -> None:
        # FSDP1 knows an offloaded gradient by its device, which here is the one that computes.
        if fsdp_internals.forgets_gradient(self):
            session.say_once("patch", OFFLOADED)
            self.flat_param.grad = None
        original(self)

    replace(FullyShardedDataParallel, "__init__", init)
    checks, check_name, handle, to_cpu_name, prepare_name = fsdp_internals.fsdp1_on_cpu()
    replace(checks, check_name, check)
    replace(handle, to_cpu_name, to_cpu)
    replace(handle, prepare_name, prepare)


def _is_cpu(device: Any) -> bool:
    return not isinstance(device, int) and torch.device(device).type == "cpu"


def unpinned(session: Session, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of ``fully_shard`` with an offload policy that does not pin memory."""
    policy: Any = kwargs.get("offload_policy")
    if not getattr(policy, "pin_memory", False):
        return kwargs
    session.say_once("patch", UNPINNED)
    return {**kwargs, "offload_policy": type(policy)(pin_memory=False)}
