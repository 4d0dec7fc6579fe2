"""A class that is chosen first, with arguments that the same condition chooses."""

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
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel as DDP


class Scaled(nn.Module):
    def __init__(self, net, device_id, factor=2.0):
        super().__init__()
        assert device_id is None
        self.net, self.factor = DDP(net), factor

    def forward(self, x):
        return self.net(x) * self.factor


def main(kind):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    sharded, cpu = kind == "sharded", torch.device("cpu")
    wrapper = DDP if not sharded else FSDP
    net = wrapper(
        nn.Sequential(nn.Linear(6, 4), nn.Tanh()),
        **(
            {"device_id": cpu, "sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}
            if sharded
            else {"bucket_cap_mb": 1}
        ),
    )
    head = (FSDP if sharded else Scaled)(nn.Linear(4, 2), device_id=cpu if sharded else None)
    parameters = [*net.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=0.05)
    torch.manual_seed(dist.get_rank())
    for step in range(3):
        loss = head(net(torch.randn(4, 6))).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


main(*sys.argv[1:])
"""


@pytest.mark.parametrize("kind", ["sharded", "whole"])
def test_trains_the_same(kind: str, launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    assert "shard(" not in both.after.read_text().replace("fully_shard(", "")
    before = launcher.script(both.before, kind)
    after = launcher.script(both.after, kind, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-6) >= 3
