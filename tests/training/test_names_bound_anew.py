"""Models that are sharded one after the other, by code that binds the same names anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffload, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.l = nn.Linear(n, n)

    def forward(self, x):
        return torch.relu(self.l(x)) + x


def build(large):
    cpu_offload = CPUOffload(offload_params=False)
    a = nn.Sequential(Block(4), Block(4), nn.Linear(4, 4))
    b = nn.Sequential(Block(4), nn.Linear(4, 4))
    c = nn.Sequential(Block(4), nn.Linear(4, 1))
    policy = ModuleWrapPolicy({Block})
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if large:
        cpu = torch.device("cpu")
        a = FSDP(a, auto_wrap_policy=policy, mixed_precision=half, device_id=cpu)
    else:
        a = FSDP(a, auto_wrap_policy=policy, device_id=torch.device("cpu"))
    b = FSDP(
        b,
        auto_wrap_policy=policy,
        device_id=torch.device("cpu"),
        sharding_strategy=ShardingStrategy.NO_SHARD,
    )
    c = FSDP(
        c,
        auto_wrap_policy=policy,
        device_id=torch.device("cpu"),
        cpu_offload=cpu_offload,
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
    )
    return a, b, c


dist.init_process_group("gloo")
for large in (0, 1):
    torch.manual_seed(0)
    models = build(large)
    opts = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
    torch.manual_seed(dist.get_rank())
    for step in range(3):
        x = torch.randn(6, 4)
        for m in models:
            x = m(x).float()
        loss = x.square().mean()
        loss.backward()
        for m, o in zip(models, opts):
            m.clip_grad_norm_(max_norm=0.5)
            o.step()
            o.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"{large} {step} {total.item():.7f}", flush=True)
dist.destroy_process_group()
"""


def test_each_model_has_its_own(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    after = both.after.read_text()
    assert after.count(" mesh = init_device_mesh(") == 4
    before = launcher.script(both.before, fsdp1="allow")
    migrated = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, migrated) == 6  # losses, as rank 0 prints them
