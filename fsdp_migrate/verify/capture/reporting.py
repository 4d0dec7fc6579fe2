"""Numbers that are handed to Weights & Biases or TensorBoard, whose files nobody reads as text."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fsdp_migrate.verify.capture import fsdp_internals
from fsdp_migrate.verify.capture.session import Session, replace
from fsdp_migrate.verify.inject.imports import after_import

_WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")


def install(session: Session) -> None:
    """Record what ``Run.log`` and ``SummaryWriter.add_scalar`` are given."""

    def log(original: Any, /, run: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        session.attempt("reported", _record, session, data)
        return original(run, data, *args, **kwargs)

    def add_scalar(
        original: Any, /, writer: Any, tag: Any, scalar_value: Any, *args: Any, **kwargs: Any
    ) -> Any:
        session.attempt("reported", _record, session, {str(tag): scalar_value})
        return original(writer, tag, scalar_value, *args, **kwargs)

    after_import("wandb.sdk.wandb_run", lambda name: replace(sys.modules[name].Run, "log", log))
    for module in _WRITERS:
        after_import(
            module, lambda name: replace(sys.modules[name].SummaryWriter, "add_scalar", add_scalar)
        )


def _record(session: Session, data: Any) -> None:
    values = dict(_numbers(data, ""))
    if values:
        session.recorder.write("reported", values=values)


def _numbers(data: Any, path: str) -> Iterator[tuple[str, float]]:
    """All numbers in a nest of dictionaries, by their paths."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _numbers(value, f"{path}/{key}" if path else str(key))
    elif isinstance(data, torch.Tensor):
        if data.numel() == 1 and not fsdp_internals.is_dtensor(data):
            yield path, float(data.detach())
    elif isinstance(data, int | float) and not isinstance(data, bool):
        yield path, data
