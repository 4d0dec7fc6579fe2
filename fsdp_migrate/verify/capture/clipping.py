"""Calls that clip gradients, and the norms they return."""

from __future__ import annotations

import functools
from typing import Any

import torch

from fsdp_migrate.verify.capture import fsdp_internals
from fsdp_migrate.verify.capture.session import Session, nested, replace

_FUNCTIONS = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm")


def install(session: Session) -> None:
    """Patch the functions of ``torch.nn.utils`` under both of their addresses."""
    utils = torch.nn.utils
    for name in _FUNCTIONS:
        if not hasattr(utils, name):  # the last two came with torch 2.6
            continue
        replace(utils, name, functools.partial(_clip, session, name))
        if hasattr(utils.clip_grad, name):
            setattr(utils.clip_grad, name, getattr(utils, name))


def install_fsdp1(session: Session, wrapper: Any) -> None:
    """Patch the method ``FullyShardedDataParallel.clip_grad_norm_``."""
    name = "FSDP.clip_grad_norm_"
    replace(wrapper, "clip_grad_norm_", functools.partial(_clip, session, name))


def _clip(session: Session, name: str, original: Any, /, *args: Any, **kwargs: Any) -> Any:
    with nested(session, "clip_depth") as outermost:
        result = original(*args, **kwargs)
    if outermost:
        session.attempt(name, _note, session, name, args, kwargs, result)
    return result


def _note(session: Session, name: str, args: Any, kwargs: Any, result: Any) -> None:
    if session.quiet:
        return
    entry: dict[str, Any] = {"by": name}
    # FSDP.clip_grad_norm_(self, max_norm, norm_type) and clip_grad_norm_(params, max_norm, ...)
    # have the bound in the same place.
    bound = kwargs.get("max_norm", kwargs.get("clip_value"))
    if bound is None and len(args) > 1 and name != "get_total_norm":
        bound = args[1]
    if bound is not None:
        entry["bound"] = float(bound)
    if name == "clip_grads_with_norm_":  # returns nothing: the norm was taken before
        result = kwargs.get("total_norm", args[2] if len(args) > 2 else None)
    if isinstance(result, torch.Tensor):
        norm, combine = fsdp_internals.local_scalar(result)
        # The norm is read at the optimizer step: reading it here would wait for the device.
        entry |= {"norm": norm.reshape(()).clone(), "combine": combine}
    session.clips.append(entry)
