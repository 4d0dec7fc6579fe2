"""Find the models and optimizers of a program that hands them to nobody, and name their parts."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from fsdp_migrate.verify.capture import fsdp_internals
from fsdp_migrate.verify.capture.fsdp_internals import Shard, Slot, Unit, Unsupported


@dataclass
class Model:
    """One outermost module, with clean names for everything in it.

    Names leave out the levels that only wrappers add, so they are the same before and after a
    migration. A parameter that sits in several places (tied weights) goes by the first of its names
    in sorted order.
    """

    module: nn.Module
    prefix: str = ""
    paths: dict[int, str] = field(default_factory=dict)
    """id of a module -> its clean path."""
    modules: list[nn.Module] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._walk(self.module, self.prefix)

    def _walk(self, module: nn.Module, path: str) -> None:
        if id(module) in self.paths:
            return
        self.paths[id(module)] = path
        self.modules.append(module)
        inner = fsdp_internals.wrapped_attribute(module)
        for name, child in module._modules.items():
            if child is not None:
                self._walk(child, path if name == inner else _join(path, name))

    def name(self, slots: tuple[Slot, ...]) -> str:
        """The canonical name of a parameter that sits in ``slots``.

        Raises :class:`Unsupported` when none of them is in this model.
        """
        names = [_join(self.paths[id(m)], n) for m, n in slots if id(m) in self.paths]
        if not names:
            raise Unsupported(f"an FSDP unit manages {slots[0][1]!r} of a module outside the model")
        return min(names)

    def units(self) -> list[Unit]:
        """All units, each once."""
        seen: set[int] = set()
        found: list[Unit] = []
        for module in self.modules:
            key = fsdp_internals.unit_key(module)
            if key not in seen:
                seen.add(key)
                found += fsdp_internals.units_of(module)
        return found

    def shards(self, units: list[Unit]) -> Iterator[tuple[str, Shard]]:
        """Name and local part of every parameter, managed by a unit or not."""
        managed: set[tuple[int, str]] = set()
        for unit in units:
            for shard in unit.shards:
                managed.update((id(module), name) for module, name in shard.slots)
                yield self.name(shard.slots), shard
        places: dict[int, list[Slot]] = {}
        params: dict[int, torch.Tensor] = {}
        for module in self.modules:
            for name, param in module._parameters.items():
                if (
                    param is not None
                    and (id(module), name) not in managed
                    and not fsdp_internals.is_flat_parameter(param)
                ):
                    places.setdefault(id(param), []).append((module, name))
                    params[id(param)] = param
        for key, slots in places.items():
            yield self.name(tuple(slots)), fsdp_internals.plain_shard(tuple(slots), params[key])

    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and tensor of every buffer. Each rank has its own."""
        for module in self.modules:
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    yield _join(self.paths[id(module)], name), buffer


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


@dataclass
class World:
    """All models and optimizers alive at one moment."""

    models: list[Model]
    optimizers: list[torch.optim.Optimizer]

    def units(self) -> list[tuple[Model, Unit]]:
        """Every unit with the model it belongs to."""
        return [(model, unit) for model in self.models for unit in model.units()]

    def shards(self) -> dict[str, Shard]:
        """Every parameter of every model by name."""
        return {name: shard for model in self.models for name, shard in model.shards(model.units())}

    def buffers(self) -> dict[str, torch.Tensor]:
        """Every buffer of every model by name."""
        return dict(pair for model in self.models for pair in model.buffers())


class Explorer:
    """Finds models again and again, and calls each by the same name every time.

    The program calls its models in the same order before and after a migration, whereas wrapping
    changes the order in which objects were made. Models are remembered weakly: a number that
    belonged to one that is gone must not pass to another.
    """

    def __init__(self) -> None:
        self._turns: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        self._prefixes: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._used: list[str] = []
        self.callers = 0
        """How many different modules were called from outside so far."""

    def called(self, module: nn.Module) -> None:
        """Note that a wrapped module was called from outside."""
        if module not in self._turns:
            self._turns[module] = self.callers
            self.callers += 1

    def look(self) -> World:
        """All models that are trained or sharded, and all optimizers."""
        tops, optimizers = _find()
        fresh = [top for top in tops if top not in self._prefixes]
        fresh.sort(key=self._turn)
        for top in fresh:
            prefix = "" if len(tops) == 1 else self._prefix(_kind(top))
            self._prefixes[top] = prefix
            self._used.append(prefix)
        tops.sort(key=lambda top: self._used.index(self._prefixes[top]))
        return World([Model(top, self._prefixes[top]) for top in tops], optimizers)

    def _turn(self, top: nn.Module) -> int:
        """When the model was called first; late if never."""
        turns = [self._turns[m] for m in top.modules() if m in self._turns]
        return min(turns, default=self.callers)

    def _prefix(self, kind: str) -> str:
        """The class name, numbered where it repeats."""
        number = 1
        while (prefix := kind if number == 1 else f"{kind}#{number}") in self._used:
            number += 1
        return prefix


def _find() -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
    """The outermost modules that matter and the optimizers, among all live objects.

    Asking the garbage collector needs no patch of ``nn.Module`` and finds modules however they were
    made (unpickled, deep-copied). ``type(o)`` and not ``isinstance``: the latter would run the
    ``__class__`` property of lazy proxies.
    """
    gc.collect()
    modules: list[nn.Module] = []
    optimizers: list[torch.optim.Optimizer] = []
    for thing in gc.get_objects():
        kind: Any = type(thing)
        if issubclass(kind, nn.Module):
            if "_modules" in thing.__dict__:  # else still inside its __init__
                modules.append(thing)
        elif issubclass(kind, torch.optim.Optimizer) and hasattr(thing, "param_groups"):
            optimizers.append(thing)
    children = {id(c) for m in modules for c in m._modules.values() if c is not None}
    tops = [m for m in modules if id(m) not in children]
    held = {id(p) for o in optimizers for g in o.param_groups for p in g["params"]}
    chosen = [m for m in tops if _matters(m, held)]
    return chosen, optimizers


def _matters(top: nn.Module, held: set[int]) -> bool:
    return any(
        fsdp_internals.is_fsdp1(m)
        or fsdp_internals.is_fsdp2(m)
        or any(id(p) in held for p in m._parameters.values() if p is not None)
        for m in top.modules()
    )


def _kind(top: nn.Module) -> str:
    """The name of the program's own class, below any wrappers."""
    inner = top
    while (attribute := fsdp_internals.wrapped_attribute(inner)) is not None:
        child = inner._modules[attribute]
        assert child is not None
        inner = child
    # fully_shard puts a class of its own in front: FSDPLinear for Linear.
    kind = type(inner).__name__
    if fsdp_internals.is_fsdp2(inner) and kind.startswith("FSDP"):
        kind = kind.removeprefix("FSDP")
    return kind
