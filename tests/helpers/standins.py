"""Run programs in a world where every import gives a stand-in that takes everything.

What still fails there is wrong with the names of the program itself: one that is never bound, or
bound too late.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

DEPTH = 1000


class _Anything(type):
    """Classes of whatever: any attribute, any item, everything an instance."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return anything()

    def __getitem__(cls, key: object) -> Any:
        return anything()

    def __setitem__(cls, key: object, value: object) -> None:
        pass

    def __instancecheck__(cls, instance: object) -> bool:
        return True

    def __iter__(cls) -> Iterator[Any]:
        return iter([Thing()])

    def __or__(cls, other: object) -> Any:
        return Thing

    __ror__ = __mul__ = __add__ = __or__

    def __gt__(cls, other: object) -> bool:
        return True


class Thing(metaclass=_Anything):
    """An object of whatever: called, iterated, entered, subscripted, calculated with."""

    absent: frozenset[str] = frozenset()  # attributes that are None
    __members__: Mapping[str, Any] = {}  # of an enumeration

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return Thing()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return None if name in Thing.absent else Thing()

    def __iter__(self) -> Iterator[Any]:
        return iter([Thing])  # a class, for tests of types

    def __reversed__(self) -> Iterator[Any]:
        return iter([Thing()])

    def __len__(self) -> int:
        return 1

    def __contains__(self, item: object) -> bool:
        return True

    def __getitem__(self, key: object) -> Any:
        return Thing()

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def keys(self) -> Sequence[str]:
        return []

    def __instancecheck__(self, instance: object) -> bool:
        return True

    def _calculate(self, *_: object) -> Any:
        return Thing()

    __add__ = __radd__ = __sub__ = __mul__ = __rmul__ = __truediv__ = __floordiv__ = _calculate
    __rfloordiv__ = __rsub__ = __neg__ = __or__ = __ror__ = __and__ = _calculate

    def __bool__(self) -> bool:
        return True

    def __index__(self) -> int:
        return 0

    def __lt__(self, other: object) -> bool:
        return True

    __gt__ = __le__ = __ge__ = __lt__


def anything() -> Any:
    """A class of its own, so that several of them can be the bases of one."""
    return _Anything("Thing", (Thing,), {})


def run(source: str, name: str, absent: Collection[str] = ()) -> None:
    """Execute a program whose imports all give stand-ins; attributes in ``absent`` are None."""

    def fake_import(module: str, *args: Any, **kwargs: Any) -> Any:
        return importlib.import_module(module) if module == "__future__" else Thing

    namespace: dict[str, Any] = {
        "__name__": name,
        "__builtins__": {**vars(builtins), "__import__": fake_import},
    }
    Thing.absent = frozenset(absent)
    with usual_depth():
        exec(compile(source, f"{name}.py", "exec"), namespace)


@contextmanager
def usual_depth() -> Iterator[None]:
    """Let programs recurse as deeply as Python lets them at first: where everything has parts that
    have parts, with the limit that a run of the engine may leave behind they overflow the stack."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(DEPTH)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
