"""Arguments that name a CUDA device, wherever a program passes them, name the CPU instead."""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch

from fsdp_migrate.verify.capture.modes import Lasting
from fsdp_migrate.verify.capture.session import replace
from fsdp_migrate.verify.inject.imports import after_import

_CPU = torch.device("cpu")


def on_cpu(value: Any) -> Any:
    """The CPU for anything that names a CUDA device; everything else as it is."""
    if type(value) is torch.device:
        return _CPU if value.type == "cuda" else value
    if type(value) is str and (value == "cuda" or value.startswith("cuda:")):
        return "cpu"
    return value


def device(value: Any) -> Any:
    """As :func:`on_cpu`, for an argument that must be a device: there a number names one too."""
    if type(value) is int:
        return _CPU
    return on_cpu(value)


class OnCpu(Lasting):
    """Rewrites the arguments of every torch function.

    It has to be at the bottom of the stack of modes, where it sees what ``with torch.device(...)``
    has added.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.device:
            # Programs ask a device for its type: it stays, and is mapped where it is used.
            if len(args) == 1 and type(args[0]) is int and not kwargs:
                args = ("cuda", args[0])  # what a bare number means where there is CUDA
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.is_pinned:
            return False
        if func is torch.Tensor.cuda:
            return _moved(args[0])
        named, args = args, tuple(on_cpu(arg) for arg in args)
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], _CPU, *args[2:])
        moves = any(arg is not given for arg, given in zip(args, named, strict=True))
        if kwargs:
            asked = kwargs.get("device")
            kwargs = {k: on_cpu(v) for k, v in kwargs.items() if k != "pin_memory"}
            if "device" in kwargs:
                kwargs["device"] = device(kwargs["device"])
                moves = moves or kwargs["device"] is not asked
        result = func(*args, **(kwargs or {}))
        return _moved(result) if func is torch.Tensor.to and moves else result


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """What a copy to a device would be: a part of a tensor is there one without gaps."""
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return tensor
    copied = torch.empty_like(tensor, device="meta")
    return tensor if copied.stride() == tensor.stride() else tensor.contiguous()


def install() -> None:
    """Enter the mode for good, in every thread, and patch what it does not see."""
    OnCpu().stay()

    def run(original: Any, self: threading.Thread) -> None:
        OnCpu().stay()  # modes belong to threads
        original(self)

    replace(threading.Thread, "run", run)
    # Refuses a stream of ours before any mode could see it.
    replace(torch.Tensor, "record_stream", lambda original, self, stream: None)
    _generators()
    _modules()
    _loading()
    after_import("torch.utils.data.dataloader", _loader_imported)
    after_import("torch.nn.parallel.distributed", _parallel_imported)


def _generators() -> None:
    """Let ``torch.Generator("cuda")`` be one of the CPU.

    The type is C, and can be neither patched nor subclassed: another takes its place which answers
    for it.
    """
    real: Any = torch.Generator

    class GeneratorType(type):
        def __call__(cls, device: Any = "cpu") -> Any:
            return real(on_cpu(device))

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

        def __or__(cls, other: Any) -> Any:
            return real | other

        def __ror__(cls, other: Any) -> Any:
            return other | real

    vars(torch)["Generator"] = GeneratorType("Generator", (), {"__module__": "torch"})


def _modules() -> None:
    def to(original: Any, /, self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        args = tuple(device(arg) for arg in args)
        kwargs = {k: device(v) if k == "device" else v for k, v in kwargs.items()}
        return original(self, *args, **kwargs)

    def cuda(original: Any, self: torch.nn.Module, device: Any = None) -> torch.nn.Module:
        del device
        return self

    replace(torch.nn.Module, "to", to)
    replace(torch.nn.Module, "to_empty", to)
    replace(torch.nn.Module, "cuda", cuda)


def _loading() -> None:
    def load(original: Any, /, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(map_location, dict):
            map_location = {on_cpu(k): on_cpu(v) for k, v in map_location.items()}
        elif not callable(map_location):
            map_location = device(map_location) or "cpu"
        return original(f, map_location, *args, **kwargs)

    replace(torch, "load", load)


def _loader_imported(name: str) -> None:
    def init(original: Any, /, self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("pin_memory", None)
        kwargs.pop("pin_memory_device", None)
        original(self, *args, **kwargs)

    replace(sys.modules[name].DataLoader, "__init__", init)


def _parallel_imported(name: str) -> None:
    def init(
        original: Any,
        /,
        self: Any,
        module: Any,
        device_ids: Any = None,
        output_device: Any = None,
        **kw: Any,
    ) -> None:
        del device_ids, output_device
        original(self, module, **kw)

    replace(sys.modules[name].DistributedDataParallel, "__init__", init)
