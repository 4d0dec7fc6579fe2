"""Stand-ins for what composer imports and does not need to train: images, and a service."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ABSENT = frozenset({"torchvision", "mcli", "PIL"})


class Module(ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        absent = fullname.partition(".")[0] in ABSENT
        return ModuleSpec(fullname, self, is_package=True) if absent else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.insert(0, Finder())
