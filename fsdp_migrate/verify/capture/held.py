"""What the program's own variables hold across steps: averages, schedules, scalers, samplers.

Found from the frames of the program that are running, through containers and objects of the
project's own classes, so that each has a name that a migration keeps: ``main.shadow``.
"""

from __future__ import annotations

import inspect
import itertools
import os
import re
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn

from fsdp_migrate.verify.capture import fsdp_internals
from fsdp_migrate.verify.capture.discovery import World
from fsdp_migrate.verify.capture.fsdp_internals import Unsupported
from fsdp_migrate.verify.capture.liveness import is_read_later
from fsdp_migrate.verify.capture.session import Session, replace
from fsdp_migrate.verify.capture.sketch import Sketcher

_WRAPPERS = re.compile(r"_fsdp_wrapped_module\.|_checkpoint_wrapped_module\.|_orig_mod\.|^module\.")
# A function that uses one of these may keep the dictionary of its variables, which a look at them
# renews.
_OBSERVES = frozenset({"locals", "vars", "eval", "exec"})
_DEEPEST = 4
_MOST = 2000
"""Objects looked at in one step."""

_WIDEST = 64
"""Items of a list that are looked into."""


class Held:
    """Writes ``held`` records."""

    def __init__(self, session: Session, sketcher: Sketcher) -> None:
        self.session = session
        self.sketcher = sketcher
        self.epochs: list[int] = []
        """What samplers were told, in order."""

    def install_samplers(self) -> None:
        """Note the epochs that samplers are told."""

        def set_epoch(original: Any, /, sampler: Any, epoch: int) -> None:
            self.epochs.append(int(epoch))
            original(sampler, epoch)

        sampler = sys.modules["torch.utils.data.distributed"].DistributedSampler
        replace(sampler, "set_epoch", set_epoch)

    def write(self, world: World, parameters: Iterable[str]) -> None:
        """Record what is there now, beside the ``parameters`` of the models themselves.

        Objects of a program may do anything when they are asked; where they fail, that is noted.
        """
        try:
            self._write(world, parameters)
        except Exception as error:
            self.session.say_once("note", f"what variables hold could not be read: {error}")

    def _write(self, world: World, parameters: Iterable[str]) -> None:
        prefixes = [f"{model.prefix}." for model in world.models if model.prefix]
        names = set(parameters)
        names |= {name.removeprefix(prefix) for name in names for prefix in prefixes}
        walk = _Walk(self.session.config.tree, world, names)
        walk.frames(sys._getframe())
        facts = {"epochs told to samplers": self.epochs, **walk.facts}
        groups = {path: self._group(path, group) for path, group in walk.groups.items()}
        self.session.recorder.write(
            "held", n=self.session.steps, facts=facts, groups=groups, unread=walk.unread
        )

    def _group(self, path: str, group: dict[str, torch.Tensor]) -> dict[str, Any]:
        try:
            return {name: self._sketched(f"{path}/{name}", value) for name, value in group.items()}
        except Unsupported:  # placed in a way whose elements cannot be located
            return {}

    def _sketched(self, name: str, value: torch.Tensor) -> list[Any]:
        shard = fsdp_internals.plain_shard((), value)
        sketch = self.sketcher.sketch(name, shard.piece, shard.data)
        return [list(shard.piece.shape), shard.piece.key, sketch]


class _Walk:
    """One look at everything that the program's frames lead to."""

    def __init__(self, tree: str, world: World, names: set[str]) -> None:
        self.roots = tuple(os.path.join(each, "") for each in {tree, os.path.realpath(tree)})
        self.known = {id(module) for model in world.models for module in model.modules}
        self.names = names
        self.seen: set[int] = set()
        self.groups: dict[str, dict[str, torch.Tensor]] = {}
        self.facts: dict[str, Any] = {}
        self.unread: list[str] = []
        """Variables that nothing reads any more."""

    def frames(self, frame: FrameType | None) -> None:
        """Look at the variables of all frames of the program."""
        found = []
        while frame is not None:
            if self._is_program(frame) and not _OBSERVES.intersection(frame.f_code.co_names):
                found.append(frame)
            frame = frame.f_back
        # What one function reads no more, a function that it called may.
        read = {id(v) for f in found for n, v in f.f_locals.items() if is_read_later(f, n)}
        for each in reversed(found):  # outer names first: they live longer
            variables = each.f_locals
            for name, value in list(variables.items()):
                path = f"{each.f_code.co_name.strip('<>')}.{name}"
                if not (is_read_later(each, name) or id(value) in read):
                    self.unread.append(path)
                self.look(value, path, 0)
            if type(variables) is dict and each.f_code.co_flags & inspect.CO_OPTIMIZED:
                variables.clear()  # a snapshot, which would keep what the function lets go of

    def _is_program(self, frame: FrameType) -> bool:
        file = frame.f_code.co_filename
        relative = frame.f_globals.get("__name__") == "__main__" and not os.path.isabs(file)
        return relative or file.startswith(self.roots)

    def look(self, value: Any, path: str, depth: int) -> None:
        """Take down what ``value`` is, or what it leads to."""
        if depth > _DEEPEST or id(value) in self.seen or len(self.seen) > _MOST:
            return
        if isinstance(value, str | bytes | int | float | torch.Tensor | type | None):
            return
        self.seen.add(id(value))
        if isinstance(value, nn.Module):
            self._module(value, path)
        elif isinstance(value, torch.optim.lr_scheduler.LRScheduler):
            self.facts[f"{path}.last_epoch"] = getattr(value, "last_epoch", None)
        elif isinstance(value, torch.amp.GradScaler):
            self.facts[f"{path}.get_scale()"] = value.get_scale()
        elif isinstance(value, dict | list | tuple):
            self._container(value, path, depth)
        else:
            self._object(value, path, depth)

    def _module(self, module: nn.Module, path: str) -> None:
        if any(id(each) in self.known for each in module.modules()):
            return
        named = itertools.chain(module.named_parameters(), module.named_buffers())
        tensors = {_clean(name): tensor for name, tensor in named if _is_plain(tensor)}
        if tensors.keys() & self.names:
            self.groups[path] = tensors

    def _container(self, value: Any, path: str, depth: int) -> None:
        items = list(dict.items(value) if isinstance(value, dict) else enumerate(value))
        tensors = {_clean(str(key)): item for key, item in items if _is_plain(item)}
        named = tensors.keys() & self.names
        if isinstance(value, dict) and tensors and 2 * len(named) >= len(tensors):
            self.groups[path] = {name: tensors[name] for name in named}
        elif isinstance(value, list) and len(tensors) == len(items) == len(self.names) > 1:
            self.groups[path] = tensors
        for key, item in items[:_WIDEST]:
            if isinstance(key, str | int):
                self.look(item, f"{path}[{key!r}]", depth + 1)

    def _object(self, value: Any, path: str, depth: int) -> None:
        kind = type(value)
        if kind.__module__.startswith("torch.utils.data"):
            for name in ("sampler", "batch_sampler"):
                self.look(getattr(value, name, None), f"{path}.{name}", depth + 1)
        elif not self._is_own(kind):
            return
        if hasattr(kind, "set_epoch") and isinstance(getattr(value, "epoch", None), int):
            self.facts[f"{path}.epoch"] = value.epoch
        if self._is_own(kind):
            for name, item in _attributes(value):
                self.look(item, f"{path}.{name}", depth + 1)

    def _is_own(self, kind: type) -> bool:
        """Whether a class is the project's own."""
        module = sys.modules.get(kind.__module__)
        file = getattr(module, "__file__", None)
        if kind.__module__ == "__main__":
            return True
        return isinstance(file, str) and os.path.abspath(file).startswith(self.roots)


def _clean(name: str) -> str:
    """A name without the levels of wrappers."""
    return _WRAPPERS.sub("", name)


def _is_plain(value: Any) -> bool:
    """Whether it is a tensor with dimensions, whose values can be read."""
    if not isinstance(value, torch.Tensor) or type(value).__name__ == "ShardedTensor":
        return False
    local = fsdp_internals.local_part(value)
    readable = not local.is_meta and local.layout is torch.strided
    return bool(readable and local.is_floating_point() and value.dim())


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    try:
        yield from list(vars(value).items())
    except TypeError:  # it has slots
        return
