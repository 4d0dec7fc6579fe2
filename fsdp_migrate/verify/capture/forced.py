"""Compute in float32 what the program wants computed in 16 bits.

In bfloat16, rounding hides a learning rate that is one percent off, and most other defects. The
same program computed in float32 shows them. What is *about* dtypes is judged in a run that is left
as it is.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from fsdp_migrate.verify.capture.modes import Lasting
from fsdp_migrate.verify.capture.session import replace

_LOW = frozenset({torch.bfloat16, torch.float16})

# Methods that name their dtype.
_CASTS = frozenset({torch.Tensor.half, torch.Tensor.bfloat16})


def full(dtype: Any) -> Any:
    """float32 for a 16-bit dtype; anything else as it is."""
    return torch.float32 if dtype in _LOW else dtype


def policy(given: Any) -> Any:
    """A mixed-precision policy, FSDP1's or FSDP2's, with its 16-bit dtypes replaced.

    The policy itself stays: FSDP1 gives every BatchNorm a unit of its own when there is one.
    """
    if given is None or not dataclasses.is_dataclass(given) or isinstance(given, type):
        return given
    changed = {
        field.name: full(getattr(given, field.name))
        for field in dataclasses.fields(given)
        if field.name.endswith("_dtype")
    }
    return dataclasses.replace(given, **changed)


def install_autocast() -> None:
    """Let every ``autocast`` region be a disabled one."""

    def init(original: Any, /, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._enabled = False

    replace(torch.autocast, "__init__", init)


def install_stored() -> None:
    """Make tensors in float32 where the program asks for 16 bits, also by default."""

    def set_default_dtype(original: Any, dtype: torch.dtype) -> None:
        original(full(dtype))

    replace(torch, "set_default_dtype", set_default_dtype)
    FullPrecision().stay()


class FullPrecision(Lasting):
    """Replaces 16-bit dtypes among the arguments of every torch function."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.view:  # a dtype here reinterprets bytes
            return func(*args, **(kwargs or {}))
        if func in _CASTS:
            func, args = torch.Tensor.to, (args[0], torch.float32)
        if torch.dtype in map(type, args):  # asked for every attribute of every tensor: in C
            args = tuple(full(arg) if type(arg) is torch.dtype else arg for arg in args)
        if kwargs and type(kwargs.get("dtype")) is torch.dtype:
            kwargs = {**kwargs, "dtype": full(kwargs["dtype"])}
        return func(*args, **(kwargs or {}))
