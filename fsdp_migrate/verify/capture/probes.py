"""Say what the places that the rewriter asks about have: a model, what holds one, a plain value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
from torch import nn

from fsdp_migrate.verify.capture.described import described
from fsdp_migrate.verify.inject import probed

_MOST = 10_000
"""So often the values of one place are looked at; what comes then is not known."""
_DEEPEST = 4
_MANY = 1000
"""So many objects are looked into for a model that one of them holds."""

Say = Callable[..., None]


class Probes:
    """The values of the places in :data:`probed.places`, each kind of them told to ``say`` once.

    ``made_by`` answers which constructor made a model, by its number.
    """

    def __init__(
        self,
        say: Say,
        steps: Callable[[], int],
        wrapper: type[nn.Module],
        made_by: Callable[[nn.Module], int | None],
    ) -> None:
        self._say, self._steps, self._wrapper, self._made_by = say, steps, wrapper, made_by
        self._times: Counter[int] = Counter()
        self._said: set[tuple[Any, ...]] = set()

    def install(self) -> None:
        """Look at values from now on."""
        probed.is_compiling = torch.compiler.is_compiling
        probed.note = self._note
        for number in sorted(probed.early):
            self._tell(number, kind="unseen")

    def _note(self, number: int, value: Any) -> None:
        self._times[number] += 1
        try:
            if self._times[number] > _MOST:
                if self._times[number] == _MOST + 1:
                    self._tell(number, kind="unseen")
                return
            model = self._made_by(value) if isinstance(value, self._wrapper) else None
            plain = value is None or isinstance(value, bool | int | float | str | Enum)
            self._tell(
                number,
                kind=self._kind(value),
                class_=type(value).__name__,
                value=described(value) if plain or isinstance(value, torch.dtype) else None,
                model=model,
            )
        except Exception as error:  # the program goes on, and the place is not known
            self._tell(number, kind="unseen", value=f"{type(error).__name__}: {error}")

    def _tell(
        self,
        number: int,
        *,
        kind: str,
        class_: str = "",
        value: Any = None,
        model: int | None = None,
    ) -> None:
        key = (number, kind, class_, repr(value), model)
        if key in self._said:
            return
        self._said.add(key)
        file, span = probed.places[number]
        self._say(
            "value at",
            file=file,
            span=list(span),
            kind=kind,
            **{"class": class_},
            value=value,
            model=model,
            step=self._steps(),
        )

    def _kind(self, value: Any) -> str:
        if isinstance(value, self._wrapper):
            return "model"
        if isinstance(value, torch.optim.Optimizer):
            return "optimizer"
        return "holder" if self._holds(value) else "other"

    def _holds(self, value: Any) -> bool:
        """Whether a model, or an optimizer of one, can be found in an object."""
        waiting, seen = [(value, 0)], {id(value)}
        while waiting:
            each, depth = waiting.pop()
            if isinstance(each, self._wrapper | torch.optim.Optimizer):
                return True
            modules = each.modules() if isinstance(each, nn.Module) else ()
            if any(isinstance(module, self._wrapper) for module in modules):
                return True
            inner: list[Any] = []
            if isinstance(each, dict):
                inner = list(each.values())
            elif isinstance(each, list | tuple | set | frozenset):
                inner = list(each)
            elif not isinstance(each, type | torch.Tensor):
                inner = list(getattr(each, "__dict__", {}).values())
                bound = getattr(each, "__self__", None)
                inner += [bound] if bound is not None else []
            for item in inner:
                if depth >= _DEEPEST or len(seen) >= _MANY:
                    raise LookupError("too much is in it")
                if isinstance(item, bool | int | float | str | bytes) or id(item) in seen:
                    continue
                seen.add(id(item))
                waiting.append((item, depth + 1))
        return False
