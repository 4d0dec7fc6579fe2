"""The state a run starts from: written down where weights are drawn late, taken over on demand.

Weights that are drawn while the model is on the meta device come out differently when the same code
draws whole tensors (FSDP1's ``param_init_fn``) or shards (FSDP2). Two such runs are two unrelated
models until one takes over the other's weights, buffers and random number generators.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import torch

from fsdp_migrate.verify.capture.discovery import World
from fsdp_migrate.verify.capture.fsdp_internals import Shard
from fsdp_migrate.verify.capture.recorder import Recorder
from fsdp_migrate.verify.capture.sketch import Piece


def write(recorder: Recorder, world: World) -> None:
    """Write this rank's part of every parameter, its buffers and generators to ``rank-R.start``.

    Raises :class:`OSError` when the file cannot be written.
    """
    state = {
        "params": {
            name: (shard.piece.flat, shard.piece.offset, shard.piece.size, shard.data.cpu())
            for name, shard in world.shards().items()
        },
        "buffers": {name: buffer.detach().cpu() for name, buffer in world.buffers().items()},
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": random.getstate(),
        "numpy": _numpy().get_state() if _numpy() else None,
    }
    target = recorder.folder / f"rank-{recorder.rank}.start"
    partial = target.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, target)


@torch.no_grad()
def take_over(folder: Path, rank: int, world: World) -> list[str]:
    """Replace the state of this rank by that written in ``folder``, in place.

    Answers the names of parameters and buffers for which nothing was found there, or something of
    another shape; they keep their values.

    Raises :class:`OSError` when the files are missing.
    """
    files = sorted(folder.glob("rank-*.start"))
    if not files:
        raise FileNotFoundError(f"no rank wrote its first state to {folder}")
    states = [torch.load(path, weights_only=False) for path in files]  # written by ourselves
    missing = []
    for name, shard in world.shards().items():
        whole = _assemble([s["params"][name] for s in states if name in s["params"]], shard)
        if whole is None:
            missing.append(name)
        elif shard.data.numel():
            part = whole[shard.piece.indices(torch.device("cpu"))]
            shard.data.copy_(part.reshape(shard.data.shape))
    mine: dict[str, Any] = states[rank]
    for name, buffer in world.buffers().items():
        found = mine["buffers"].get(name)
        if found is None or found.shape != buffer.shape:
            missing.append(name)
        else:
            buffer.copy_(found)
    torch.set_rng_state(mine["torch"])
    if mine["cuda"] is not None:
        torch.cuda.set_rng_state(mine["cuda"])
    random.setstate(mine["python"])
    numpy = _numpy()
    if numpy and mine["numpy"] is not None:
        numpy.set_state(mine["numpy"])
    return missing


def _assemble(pieces: list[Any], shard: Shard) -> torch.Tensor | None:
    """The whole parameter, flattened; None when elements are missing."""
    count = 1
    for extent in shard.piece.shape:
        count *= extent
    whole = torch.zeros(count, dtype=torch.float64)
    filled = torch.zeros(count, dtype=torch.bool)
    for flat, offset, size, values in pieces:
        if not values.numel():
            continue
        try:
            indices = Piece(shard.piece.shape, offset, size, flat).indices(torch.device("cpu"))
            whole[indices] = values.reshape(-1).to(torch.float64)
        except (IndexError, RuntimeError):  # cut from a parameter of another shape
            return None
        filled[indices] = True
    return whole if bool(filled.all()) else None


def _numpy() -> Any:
    """``numpy.random`` if the program uses NumPy."""
    numpy = sys.modules.get("numpy")
    return numpy.random if numpy is not None else None
