"""Activations that are not kept for the backward but computed once more in it."""

from __future__ import annotations

import sys
from typing import Any

from fsdp_migrate.verify.capture.session import Session, replace

MODULE = "torch.utils.checkpoint"


def install(session: Session) -> None:
    """Count the regions that activation checkpointing computes again, however it was asked for."""
    module = sys.modules[MODULE]

    def counted(original: Any, /, *args: Any, **kwargs: Any) -> Any:
        session.recomputed += 1
        return original(*args, **kwargs)

    # Reentrant checkpoints, and all others, which go back to what was saved in this context.
    replace(module.CheckpointFunction, "backward", counted)
    replace(module._recomputation_hook, "__init__", counted)
