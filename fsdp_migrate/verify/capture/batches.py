"""Fingerprints of what goes into the model, to tell different data from different training."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fsdp_migrate.verify.capture import fsdp_internals
from fsdp_migrate.verify.capture.session import Entered, Session

_SAMPLED_BYTES = 1 << 24
_SAMPLED_ELEMENTS = 1 << 20


def install_loader(session: Session) -> None:
    """Fingerprint every batch that a ``DataLoader`` yields in this process."""
    if session.quiet:
        return
    iterator = fsdp_internals.loader_iterator()
    original = iterator.__next__

    def following(self: Any) -> Any:
        batch = original(self)
        if not session.quiet:
            session.attempt("batch", lambda: session.batches.append(fingerprint(batch)))
        return batch

    iterator.__next__ = following


def entering(session: Session, module: torch.nn.Module, args: Any, kwargs: Any) -> bool:
    """Note that ``module`` is called; answers whether it is the outermost sharded module."""
    if session.backward_depth:  # recomputation of activation checkpointing
        return False
    # A module that is the owner already is a new call: the previous one left by an exception.
    if session.forward_owner not in (None, id(module)):
        return False
    session.forward_owner = id(module)
    seen = [session.entered]
    if session.method_owner is None:
        seen.append(session.by_methods)
    _note(session, module, (args, kwargs), seen)
    if not session.quiet and not session.forward_trains:
        session.evaluated += any(p.requires_grad for p in module.parameters())
    return True


def leaving(session: Session, module: torch.nn.Module, output: Any = None) -> None:
    """Note that the call of ``module`` is over, and in evaluation what came out of it."""
    if session.forward_owner == id(module):
        session.forward_owner = None
        seen = [session.entered]
        if session.method_owner is None:
            seen.append(session.by_methods)
        _note_output(session, output, seen)


def entering_method(session: Session, module: torch.nn.Module, args: Any, kwargs: Any) -> bool:
    """Note that a method is called which is registered as a forward; answers whether it is the
    outermost.

    The other version may call the model where this one calls the method (Lightning's Trainer), or
    the modules in it, so that both ways to see it are kept.
    """
    inside = session.forward_owner is not None or session.method_owner is not None
    if session.backward_depth or inside:
        return False
    session.method_owner = id(module)
    session.methods_entered += 1
    _note(session, module, (args, kwargs), [session.by_methods])
    return True


def leaving_method(session: Session, output: Any) -> None:
    """Note that the outermost of these methods is over."""
    session.method_owner = None
    _note_output(session, output, [session.by_methods])


def _note(session: Session, module: torch.nn.Module, given: Any, seen: list[Entered]) -> None:
    session.explorer.called(module)
    session.forward_trains = torch.is_grad_enabled()
    if session.quiet:
        return
    for each in seen:
        modes, inputs = each.modes, each.inputs
        if not session.forward_trains:
            modes, inputs = each.evaluation_modes, each.evaluation_inputs
        session.attempt("mode", _append, modes, mode_of, module)
        session.attempt("inputs", _append, inputs, fingerprint, given)


def _note_output(session: Session, output: Any, seen: list[Entered]) -> None:
    if not session.forward_trains and not session.quiet and output is not None:
        for each in seen:
            session.attempt("outputs", _append, each.evaluation_outputs, _measured, output)


def _append(to: list[Any], look: Callable[[Any], Any], at: Any) -> None:
    to.append(look(at))


def _measured(value: Any) -> list[float]:
    """Number, sum and sum of squares of the floating-point elements in a nest of containers."""
    if isinstance(value, torch.Tensor):
        if not value.is_floating_point():
            return [0.0, 0.0, 0.0]
        flat = fsdp_internals.local_part(value).detach().reshape(-1)
        flat = flat[:: flat.numel() // _SAMPLED_ELEMENTS + 1].to(torch.float64)
        return [float(flat.numel()), float(flat.sum()), float(flat.dot(flat))]
    parts: list[Any] = []
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    measured = [_measured(part) for part in parts]
    return [sum(column) for column in zip(*measured, strict=True)] or [0.0, 0.0, 0.0]


def mode_of(root: torch.nn.Module) -> list[int]:
    """How many modules below ``root`` are in training and in evaluation mode, and a checksum of
    which. Pure wrappers do not count: a migration adds or removes them."""
    flags = [m.training for m in root.modules() if fsdp_internals.wrapped_attribute(m) is None]
    return [sum(flags), len(flags) - sum(flags), zlib.crc32(bytes(flags))]


def fingerprint(value: Any) -> int:
    """A checksum over all tensors and plain values in a nest of containers.

    Covers dtypes, shapes and bytes. Objects of unknown kinds count by their type only.
    """
    return _fold(value, 0)


def _fold(value: Any, crc: int) -> int:
    if isinstance(value, torch.Tensor):
        return _fold_tensor(value, crc)
    if isinstance(value, Mapping):
        for key in value:
            crc = _fold(value[key], zlib.crc32(str(key).encode(), crc))
        return crc
    if isinstance(value, list | tuple):
        for item in value:
            crc = _fold(item, crc)
        return crc
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            crc = _fold(getattr(value, field.name, None), crc)
        return crc
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return zlib.crc32(repr(value).encode(), crc)
    return zlib.crc32(type(value).__qualname__.encode(), crc)


def _fold_tensor(tensor: torch.Tensor, crc: int) -> int:
    described = f"{tensor.dtype}{tuple(tensor.shape)}"
    crc = zlib.crc32(described.encode(), crc)
    local = fsdp_internals.local_part(tensor)
    if local.is_meta or local.layout is not torch.strided or local.is_quantized:
        return crc
    flat = local.detach().reshape(-1)
    stride = flat.numel() * flat.element_size() // _SAMPLED_BYTES + 1
    data = flat[::stride].to("cpu").contiguous().view(torch.uint8)
    return zlib.crc32(data.numpy().tobytes(), crc)
