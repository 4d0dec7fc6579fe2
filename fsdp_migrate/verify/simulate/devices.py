"""What ``torch.cuda`` and ``torch.accelerator`` answer where there is no GPU."""

from __future__ import annotations

import contextlib
import os
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch

_MEMORY = 80 << 30


class Stream:
    """A stream on which everything has already happened."""

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        del device, priority, kwargs
        self.cuda_stream = 0
        self.device = torch.device("cpu")

    def record_event(self, event: Any = None) -> Any:
        """An event that has already happened."""
        return event if event is not None else Event()

    def query(self) -> bool:
        """Whether all is done."""
        return True

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being made of it."""
        return False

    def synchronize(self) -> None:
        """Wait for nothing."""

    def wait_event(self, event: Any) -> None:
        """Wait for nothing."""

    def wait_stream(self, stream: Any) -> None:
        """Wait for nothing."""

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *raised: object) -> None:
        return None


class Event:
    """An event that has already happened."""

    def __init__(self, **kwargs: Any) -> None:
        del kwargs

    def record(self, stream: Any = None) -> None:
        """Nothing to record."""

    def wait(self, stream: Any = None) -> None:
        """Wait for nothing."""

    def query(self) -> bool:
        """Whether it has happened."""
        return True

    def synchronize(self) -> None:
        """Wait for nothing."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds, of which nothing is known here."""
        return 0.0


@contextlib.contextmanager
def _scope(*args: Any, **kwargs: Any) -> Iterator[None]:
    """A context that changes nothing: of a device, a stream, a range."""
    del args, kwargs
    yield


def _nothing(*args: Any, **kwargs: Any) -> None:
    del args, kwargs


def _always(value: Any) -> Callable[..., Any]:
    def answer(*args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        return value

    return answer


class _Devices:
    """The devices of this machine, and the one that the program chose."""

    number: int | None = None

    def __init__(self, own: int) -> None:
        self.own = own

    def count(self) -> int:
        """One for each of its ranks, as many as asked for where the program makes these itself."""
        named = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE")
        return int(named or self.own)

    def set(self, device: Any) -> None:
        if isinstance(device, str):
            device = torch.device(device)
        number = device.index if isinstance(device, torch.device) else device
        self.number = number if isinstance(number, int) else self.number

    def get(self) -> int:
        if self.number is not None:
            return self.number
        return int(os.environ.get("LOCAL_RANK") or 0) if self.count() > 1 else 0


def install(own: int) -> None:
    """Replace the names of ``torch.cuda``, ``torch.accelerator`` and a few around them."""
    current = _Devices(own)
    properties = types.SimpleNamespace(
        name="simulated", total_memory=_MEMORY, major=8, minor=0, multi_processor_count=108
    )
    generator = torch.default_generator
    cuda: dict[str, Any] = {
        "is_available": _always(True),
        "is_initialized": _always(True),
        "is_bf16_supported": _always(True),
        "is_current_stream_capturing": _always(False),
        "can_device_access_peer": _always(True),
        "device_count": current.count,
        "current_device": current.get,
        "set_device": current.set,
        "get_device_name": _always(properties.name),
        "get_device_capability": _always((properties.major, properties.minor)),
        "get_device_properties": _always(properties),
        "get_arch_list": _always(["sm_80"]),
        "mem_get_info": _always((_MEMORY, _MEMORY)),
        "memory_stats": lambda *args, **kwargs: defaultdict(int),
        "memory_summary": _always(""),
        "memory_snapshot": _always([]),
        "utilization": _always(0),
        "device": _scope,
        "device_of": _scope,
        "stream": _scope,
        "Stream": Stream,
        "Event": Event,
        "current_stream": lambda *args, **kwargs: Stream(),
        "default_stream": lambda *args, **kwargs: Stream(),
        "manual_seed": generator.manual_seed,
        "manual_seed_all": generator.manual_seed,
        "initial_seed": generator.initial_seed,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "set_rng_state_all": lambda states: torch.set_rng_state(states[0]),
    }
    cuda |= dict.fromkeys(
        (
            "memory_allocated",
            "max_memory_allocated",
            "memory_reserved",
            "max_memory_reserved",
            "memory_cached",
            "max_memory_cached",
        ),
        _always(0),
    )
    cuda |= dict.fromkeys(
        (
            "init",
            "_lazy_init",
            "synchronize",
            "empty_cache",
            "ipc_collect",
            "set_stream",
            "reset_peak_memory_stats",
            "reset_max_memory_allocated",
            "reset_max_memory_cached",
            "reset_accumulated_memory_stats",
            "set_per_process_memory_fraction",
        ),
        _nothing,
    )
    for name, value in cuda.items():
        if hasattr(torch.cuda, name):
            setattr(torch.cuda, name, value)
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "empty_cache"):
        setattr(torch.cuda.memory, name, cuda[name])
    torch.cuda.memory._record_memory_history = _nothing
    torch.cuda.memory._dump_snapshot = _nothing
    for name in ("range_push", "range_pop", "mark"):
        setattr(torch.cuda.nvtx, name, _nothing)
    torch.cuda.nvtx.range = _scope
    # FSDP1 counts the devices of a machine by the type of the one that it computes on.
    torch.cpu.device_count = current.count
    # Where parameters are offloaded, it waits on the stream of that device.
    torch.cpu.Stream.synchronize = _nothing  # type: ignore[attr-defined]
    torch.cuda.nccl.version = _always((2, 21, 5))
    # What was built for CUDA says so, and extensions (torchvision's) hold theirs against it.
    torch.version.cuda = torch.version.cuda or "12.4"
    _accelerator(current)


def _accelerator(current: _Devices) -> None:
    modern = getattr(torch, "accelerator", None)  # since torch 2.6
    if modern is None:
        return
    names: dict[str, Any] = {
        "is_available": _always(True),
        "device_count": current.count,
        "current_accelerator": _always(torch.device("cuda")),
        "current_stream": lambda *args, **kwargs: Stream(),
        "memory_stats": lambda *args, **kwargs: defaultdict(int),
    }
    names |= dict.fromkeys(("current_device_index", "current_device_idx"), current.get)
    names |= dict.fromkeys(("set_device_index", "set_device_idx"), current.set)
    names |= dict.fromkeys(
        ("synchronize", "empty_cache", "set_stream", "reset_peak_memory_stats"), _nothing
    )
    names |= dict.fromkeys(
        ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
        _always(0),
    )
    for name, value in names.items():
        if hasattr(modern, name):
            setattr(modern, name, value)
