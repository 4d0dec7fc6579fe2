"""NO_SHARD over a group of ranks: each rank keeps the whole, and the group shares gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def build(group):
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
    return FSDP(
        model,
        process_group=group,
        sharding_strategy=ShardingStrategy.NO_SHARD,
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    torch.manual_seed(rank % 2)
    model = build(pairs[rank % 2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(rank)
    for step in range(4):
        loss = model(torch.randn(4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item(), flush=True)
    dist.destroy_process_group()


main()
"""


def test_trains_the_same(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    assert "use_local_synchronization" in both.after.read_text()
    before = launcher.script(both.before, fsdp1="allow", ranks=4)
    after = launcher.script(both.after, fsdp1="forbid", ranks=4)
    assert compare(before, after, tolerance=1e-5) == 16
