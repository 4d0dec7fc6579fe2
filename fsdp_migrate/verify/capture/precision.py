"""In which precision a program computes, as far as it shows outside the model's own code."""

from __future__ import annotations

from typing import Any

import torch

from fsdp_migrate.verify.capture.session import Session

_ROUNDING = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}


def install(session: Session) -> None:
    """Note the coarsest dtype under which any autocast region was entered."""
    original: Any = torch.autocast.__enter__

    def enter(self: Any) -> Any:
        if getattr(self, "_enabled", False):
            dtype = str(getattr(self, "fast_dtype", torch.float32))[6:]
            if _bits(dtype) < _bits(session.autocast or "float64"):
                session.autocast = dtype
        return original(self)

    torch.autocast.__enter__ = enter  # type: ignore[method-assign]


def _bits(dtype: str) -> int:
    return _ROUNDING.get(dtype, 53)
