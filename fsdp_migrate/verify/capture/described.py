"""What reached a constructor, as JSON: enough to tell one setting from another."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

_MOST = 32
"""So many items of a collection are described."""


def described(value: Any) -> Any:
    """``value`` as JSON. Iterators are named only: looking at one would use it up."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | types.MethodType):
        return {"type": "class" if isinstance(value, type) else "function", "name": _name(value)}
    if isinstance(value, nn.Module | torch.Tensor):
        return {"type": _name(type(value))}
    facts: dict[str, Any] = {"type": type(value).__name__}
    if isinstance(value, functools.partial):
        given = {str(n): described(v) for n, v in enumerate(value.args)}
        given |= {name: described(v) for name, v in value.keywords.items()}
        return facts | {"of": _name(value.func), "arguments": given}
    if isinstance(value, dist.ProcessGroup):
        return facts | {"ranks": value.size()}
    if type(value).__name__ == "DeviceMesh":
        return facts | {"shape": list(value.mesh.shape), "names": list(value.mesh_dim_names or ())}
    if isinstance(value, Mapping):
        return {str(key): described(item) for key, item in list(value.items())[:_MOST]}
    if isinstance(value, list | tuple | set | frozenset):
        return [described(item) for item in list(value)[:_MOST]]
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    if fields:
        return facts | {field.name: described(getattr(value, field.name)) for field in fields}
    # Policies keep what they were made from in attributes (`ModuleWrapPolicy`).
    kept = {n.lstrip("_"): v for n, v in getattr(value, "__dict__", {}).items()}
    return facts | {name: described(v) for name, v in kept.items() if _is_plain(v)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | Enum | type)


def _name(value: Any) -> str:
    return str(getattr(value, "__qualname__", type(value).__qualname__))
