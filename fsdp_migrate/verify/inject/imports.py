"""Run a function right after a module was imported by someone else.

Patching torch *after* the program's own ``import torch`` and before its next line means that
``from torch.distributed.fsdp import fully_shard`` already receives the patched name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Callback = Callable[[str], None]


def after_import(name: str, callback: Callback) -> None:
    """Call ``callback(name)`` once ``name`` has been imported; at once if it already was."""
    if name in sys.modules:
        callback(name)
        return
    _finder().waiting.setdefault(name, []).append(callback)


def _finder() -> _Finder:
    for finder in sys.meta_path:
        if isinstance(finder, _Finder):
            return finder
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    return finder


class _Finder:
    """Lets the other finders find, and puts a loader around the loader of an awaited module."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callback]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.waiting:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Announcing(spec.loader, self.waiting.pop(name))
                return spec
        return None


class _Announcing(Loader):
    """The original loader, plus the calls afterwards."""

    def __init__(self, original: Any, callbacks: list[Callback]) -> None:
        self._original = original
        self._callbacks = callbacks

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        spec.loader = self._original
        try:
            created: ModuleType | None = self._original.create_module(spec)
        finally:
            spec.loader = self
        return created

    def exec_module(self, module: ModuleType) -> None:
        # The module must look as if it had been loaded without us: inspect.getsource and
        # importlib.resources go through these two attributes.
        spec = module.__spec__
        assert spec is not None
        spec.loader = self._original
        module.__loader__ = self._original
        self._original.exec_module(module)
        for callback in self._callbacks:
            callback(module.__name__)
