"""Averages in a plain model of parameters that NO_SHARD left whole."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
import copy

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def main(net, batches):
    mean = AVERAGE
    model = FSDP(net, use_orig_params=True, sharding_strategy=ShardingStrategy.STRATEGY)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x in batches:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for p, q in zip(mean.parameters(), model.parameters()):
                p.mul_(0.9).add_(q, alpha=0.1)
"""
PLAIN = "copy.deepcopy(net)"
SHARDED = "FSDP(copy.deepcopy(net), sharding_strategy=ShardingStrategy.STRATEGY)"


@pytest.mark.parametrize(
    ("average", "strategy", "marked"),
    [
        (PLAIN, "NO_SHARD", True),
        (PLAIN, "FULL_SHARD", False),  # FSDP1 failed
        (SHARDED, "NO_SHARD", False),  # both are DTensors
    ],
)
def test_whole_parameters_mix_with_plain_ones(average: str, strategy: str, marked: bool) -> None:
    text = rewritten(PROGRAM.replace("AVERAGE", average).replace("STRATEGY", strategy))
    said = " ".join(text.replace("#", " ").split())
    assert ("combined with those of a plain model" in said) is marked
