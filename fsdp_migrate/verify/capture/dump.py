"""Exact values of the parameters, for small models: sketches only estimate a difference."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from fsdp_migrate.verify.capture.fsdp_internals import Shard
from fsdp_migrate.verify.capture.recorder import Recorder

SMALL = 4_000_000
"""Local elements up to which a model is written after every step."""

LARGE = 100_000_000
"""Local elements beyond which it is not written at all."""


def is_small(shards: Mapping[str, Shard]) -> bool:
    """Whether writing the whole model costs next to nothing."""
    return _count(shards) <= SMALL


def _count(shards: Mapping[str, Shard]) -> int:
    return sum(shard.data.numel() for shard in shards.values())


def write(recorder: Recorder, shards: Mapping[str, Shard]) -> dict[str, Any]:
    """Write this rank's part of every parameter to ``rank-R.params`` and answer the index.

    The file holds little-endian float64 for double-precision parameters and float32 for all others
    (exact for bfloat16 and float16), one after the other. The index maps a name to
    ``[key of the piece, dtype in the file, number of elements, shape]``. Only pieces that are one
    range of the flattened parameter are written; others are named under ``left_out``.
    """
    if _count(shards) > LARGE:
        return {"index": {}, "left_out": sorted(shards), "why": "the model is too large"}
    index: dict[str, list[Any]] = {}
    left_out = []
    target = recorder.folder / f"rank-{recorder.rank}.params"
    partial = target.with_suffix(".partial")
    with open(partial, "wb") as file:
        for name, shard in shards.items():
            if shard.piece.span() is None or not shard.data.is_floating_point():
                left_out.append(name)
                continue
            dtype = torch.float64 if shard.data.dtype == torch.float64 else torch.float32
            values = shard.data.detach().reshape(-1).to("cpu", dtype).contiguous()
            file.write(values.numpy().tobytes())
            index[name] = [
                shard.piece.key,
                str(dtype)[6:],
                values.numel(),
                list(shard.piece.shape),
            ]
    # Replaced in one go: a run that is killed while writing keeps the previous step's values.
    os.replace(partial, target)
    return {"index": index, "left_out": left_out, "why": ""}
