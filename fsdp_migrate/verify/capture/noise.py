"""Rounding-size noise, by which the twin run measures how far rounding alone carries."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fsdp_migrate.verify.capture.fsdp_internals import Shard
from fsdp_migrate.verify.capture.sketch import hashed
from fsdp_migrate.verify.inject.config import Noise


@torch.no_grad()
def perturb_parameters(shards: Mapping[str, Shard], noise: Noise) -> None:
    """Multiply every element of every trainable parameter by one plus or minus the amplitude."""
    for name, shard in shards.items():
        if shard.requires_grad:
            _perturb(name, shard, shard.data, noise, salt=noise.seed)


@torch.no_grad()
def perturb_gradients(shards: Mapping[str, Shard], noise: Noise, step: int) -> None:
    """The same for the gradients of one step; ``step`` counts from 0."""
    for name, shard in shards.items():
        if shard.grad is not None:
            _perturb(name, shard, shard.grad, noise, salt=noise.seed + 1000 * (step + 1))


def _perturb(name: str, shard: Shard, values: torch.Tensor, noise: Noise, *, salt: int) -> None:
    """In place. The sign is a hash of name and global index: it takes nothing from any random
    number generator, and replicas of an element get the same noise."""
    if not values.is_floating_point() or values.numel() == 0:
        return
    bits = hashed(name, shard.piece.indices(values.device), salt) & 1
    factors = 1 + noise.amplitude * (bits.to(torch.float64) * 2 - 1)
    # By .data, which autograd does not watch: a backward may still need what is changed.
    values.data.copy_((values.reshape(-1).to(torch.float64) * factors).reshape(values.shape))
