"""Modes that see every torch function for as long as the program lives, but for the calls that
torch and the recorder make for themselves.

A mode costs microseconds a call, of every attribute of every tensor as well, and the program itself
makes one call in twenty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fsdp_migrate.verify.capture.session import Session, replace


class Lasting(TorchFunctionMode):
    """A mode that is entered for good; one of those that :func:`aside` takes away."""

    def stay(self) -> None:
        """Enter it, in this thread."""
        mode: Any = self
        mode.__enter__()


class _Aside:
    """Takes the lasting modes of this thread away, where no mode of the program is among them."""

    def __init__(self) -> None:
        self._taken: list[Any] = []

    def __enter__(self) -> None:
        c: Any = torch._C
        depth = c._len_torch_function_stack()
        if depth and all(isinstance(c._get_function_stack_at(n), Lasting) for n in range(depth)):
            self._taken = [c._pop_torch_function_stack() for _ in range(depth)]

    def __exit__(self, *raised: object) -> None:
        c: Any = torch._C
        while self._taken:
            c._push_on_torch_function_stack(self._taken.pop())


def spare_recorder(session: Session) -> None:
    """Let what the recorder does itself go by the modes."""
    session.aside = _Aside


def spare(owner: object, *names: str) -> None:
    """Let functions of torch go by the modes, in which nothing of the program runs."""

    def call(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        with _Aside():
            return original(*args, **kwargs)

    for name in names:
        if hasattr(owner, name):
            replace(owner, name, call)
