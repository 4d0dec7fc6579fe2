"""Random numbers that DTensors draw: each rank its own shard."""

from __future__ import annotations

import sys
from typing import Any

from fsdp_migrate.verify.capture.session import Session, replace

ALIKE = (
    "DTensors drew random numbers on CPUs, where ranks that are seeded alike draw the same shards; "
    "on GPUs every shard is drawn from its own part of the stream"
)


def install(session: Session) -> None:
    """Note when DTensors draw on a device for which torch keeps no offsets of shards."""

    def supported(original: Any, /, mesh: Any) -> bool:
        kept = bool(original(mesh))
        if not kept:
            session.say_once("alike", ALIKE)
        return kept

    replace(sys.modules["torch.distributed.tensor._random"], "is_rng_supported_mesh", supported)
