"""Whether ranks give FSDP different weights, and FSDP puts one model together from them.

So does a program that seeds nothing, or every rank in its own way, and broadcasts nothing: of a
parameter each rank keeps the part that is its own, and FSDP1 and FSDP2 cut parameters at different
places. The same program starts from other weights then.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from fsdp_migrate.verify.capture import fsdp_internals
from fsdp_migrate.verify.capture.batches import fingerprint
from fsdp_migrate.verify.capture.fsdp_internals import Shard
from fsdp_migrate.verify.capture.session import Session

_WAIT_S = 30.0
_MOST_ELEMENTS = 1 << 27
"""Of larger models nothing is kept, and their first weights must be the same."""


class Given:
    """What this rank gave to FSDP."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.total: int | None = 0
        """The fingerprints of all parameters, together: FSDP1 gets the whole first, FSDP2 last.
        None where one could not be read (it has no values yet)."""
        self.synced = False
        """Whether FSDP1 was asked to make ranks equal."""
        self._seen: Any = WeakIdKeyDictionary()
        self._values: dict[tuple[int, str], torch.Tensor] = {}
        self._room = _MOST_ELEMENTS

    def add(self, modules: list[nn.Module]) -> None:
        """Note the parameters of modules that FSDP is about to take, each once."""
        for slot, parameter in _own(modules):
            if self.total is not None and parameter not in self._seen:
                self._seen[parameter] = True
                try:
                    self.total = (self.total + fingerprint(parameter)) % (1 << 32)
                    self._keep(slot, parameter)
                except (RuntimeError, TypeError, ValueError):
                    self.total = None

    def _keep(self, slot: tuple[int, str], parameter: torch.Tensor) -> None:
        self._room -= parameter.numel()
        if self._room >= 0 and not parameter.is_meta:
            self._values[slot] = parameter.detach().cpu().clone()

    def compare(self, shards: Iterable[Shard]) -> None:
        """Whether the model that is trained still has what was given: what is loaded or drawn
        behind that is no question of where parameters are cut."""
        if not all(self._is_kept(shard) for shard in shards):
            self.total = None
        self._values.clear()

    def _is_kept(self, shard: Shard) -> bool:
        found = (self._values.get((id(module), name)) for module, name in shard.slots)
        value = next((v for v in found if v is not None), None)
        if value is None:
            return False
        part = value.reshape(-1)[shard.piece.indices(torch.device("cpu"))]
        return torch.equal(part.reshape(-1), shard.data.cpu().reshape(-1))

    def write(self) -> None:
        """Record it."""
        if self.total is not None:
            self.session.recorder.write("given", total=self.total, synced=self.synced)

    def differs(self) -> bool:
        """Whether ranks gave different weights to FSDP, and it keeps them so.

        Told through files: a collective could hang. All ranks are about to call the model together.
        """
        recorder = self.session.recorder
        if self.synced or self.total is None or not recorder.opened or recorder.world == 1:
            return False
        folder = recorder.folder
        mine = folder / f"given-{recorder.rank}"
        mine.with_suffix(".partial").write_text(str(self.total), encoding="ascii")
        mine.with_suffix(".partial").replace(mine)
        files = [folder / f"given-{rank}" for rank in range(recorder.world)]
        deadline = time.monotonic() + _WAIT_S
        while not all(file.exists() for file in files):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return len({file.read_text(encoding="ascii") for file in files}) > 1


def _own(modules: list[nn.Module]) -> Iterator[tuple[tuple[int, str], torch.Tensor]]:
    """Whole parameters and where they sit, without those that FSDP has already."""
    for module in modules:
        if fsdp_internals.is_fsdp1(module):
            continue
        for name, parameter in module._parameters.items():
            if parameter is not None and not fsdp_internals.is_dtensor(parameter):
                yield (id(module), name), parameter
        yield from _own(list(module.children()))
