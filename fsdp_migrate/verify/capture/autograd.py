"""Losses: the scalars on which the program calls ``backward``."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from fsdp_migrate.verify.capture import fsdp_internals
from fsdp_migrate.verify.capture.session import Session, nested, replace


class Scaled:
    """Remembers which loss a gradient scaler multiplied into which scaled loss."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def note(self, scaled: object, loss: object) -> None:
        """``scaled`` came from ``loss``."""
        if isinstance(scaled, torch.Tensor) and isinstance(loss, torch.Tensor):
            key = id(scaled)
            forget = self._of.pop
            watch = weakref.ref(scaled, lambda _: forget(key, None) and None)
            self._of[key] = (watch, loss.detach().clone())

    def original(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The loss that ``tensor`` is the scaled form of, if it is one."""
        found = self._of.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None


def install(
    session: Session, scaled: Scaled, begins: Callable[[], None], ends: Callable[[], None]
) -> None:
    """Patch ``torch.autograd.backward``, through which ``Tensor.backward`` goes as well.

    ``begins`` and ``ends`` are called at the start and the end of every outermost backward.
    """

    @fsdp_internals.eager
    def backward(
        original: Any, /, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        with nested(session, "backward_depth") as outermost:
            # A nested call is reentrant activation checkpointing, not a loss.
            if outermost:
                session.forward_owner = None
                session.attempt("identify", session.identify)
                session.attempt("backward", begins)
                session.attempt("loss", _note, session, scaled, tensors, grad_tensors)
                session.beat("-", "ENTER")
            result = original(tensors, grad_tensors, *args, **kwargs)
        if outermost:
            session.attempt("end of backward", ends)
        return result

    replace(torch.autograd, "backward", backward)


def _note(session: Session, scaled: Scaled, tensors: Any, grad_tensors: Any) -> None:
    if session.quiet:
        return
    if isinstance(tensors, torch.Tensor):
        tensors = (tensors,)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or tensor.numel() != 1 or grad_tensors is not None:
            session.say_once("note", "backward was called on something that is not a scalar loss")
            continue
        loss = scaled.original(tensor)
        # local_scalar gives a DTensor's local value; reading the whole could be a collective.
        value, _ = fsdp_internals.local_scalar(tensor if loss is None else loss)
        # A copy: the program may modify or free the loss before the step is recorded.
        session.losses.append((value.reshape(()).clone(), "plain" if loss is None else "unscaled"))


def install_scaler(session: Session, scaled: Scaled, scaler: Any) -> None:
    """Patch ``scale`` of a gradient scaler class."""

    def scale(original: Any, self: Any, outputs: Any) -> Any:
        result = original(self, outputs)
        session.attempt("scale", scaled.note, result, outputs)
        return result

    replace(scaler, "scale", scale)
