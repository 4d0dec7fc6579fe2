"""Settings that text gives another value, which a program executes: they are read at run time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return x + self.linear(x).relu()


rate = 0.05
strategy = ShardingStrategy.SHARD_GRAD_OP
precision = MixedPrecision()
policy = ModuleWrapPolicy({Block})
exec(sys.argv[1])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    model = FSDP(
        nn.Sequential(Block(), Block(), nn.Linear(6, 2)),
        sharding_strategy=strategy,
        mixed_precision=precision,
        auto_wrap_policy=policy,
        device_id=torch.device("cpu"),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    torch.manual_seed(dist.get_rank())
    for step in range(4):
        loss = model(torch.randn(4, 6)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item(), flush=True)
    dist.destroy_process_group()


main()
"""
HALF = "MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"


@pytest.mark.parametrize(
    ("text", "tolerance"),
    [
        ("rate = 0.01", 1e-5),
        ("strategy = ShardingStrategy.NO_SHARD", 1e-5),
        (f"strategy = ShardingStrategy.FULL_SHARD; precision = {HALF}", 1e-3),
        (f"precision = {HALF}; policy = ModuleWrapPolicy({{nn.Linear}})", 1e-3),
    ],
)
def test_trains_the_same(launcher: Launcher, tmp_path: Path, text: str, tolerance: float) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    before = launcher.script(both.before, text, fsdp1="allow")
    after = launcher.script(both.after, text, fsdp1="forbid")
    assert compare(before, after, tolerance=tolerance) == 8
