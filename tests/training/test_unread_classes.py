"""A model of a class that nobody here reads, whose children are sharded: it asks for FSDP1's
wrapper by a part of its name, and saves what every child has whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import io

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build():
    file = io.BytesIO()
    net = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    torch.save(net, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def shard(net):
    for name, part in net.named_children():
        if len(list(part.parameters())):
            net.add_module(name, FSDP(part, device_id=torch.device("cpu")))
    return net


def loss(net, x):
    sharded = any("FullyShardedDataParallel" in type(m).__name__ for m in net.modules())
    return net(x if sharded else 3 * x).square().mean()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = shard(build())
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    for _ in range(3):
        optimizer.zero_grad()
        found = loss(net, torch.randn(4, 6))
        found.backward()
        optimizer.step()
        print("loss", found.item())
    state = net.state_dict()
    if dist.get_rank() == 0:
        for name, value in state.items():
            print(name, type(value) is torch.Tensor, value.numel(), value.double().sum().item())
    dist.destroy_process_group()


main()
"""


def test_trains_and_saves_the_same(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    before = launcher.script(both.before)
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) >= 7
    assert before.output[0].count(" True ") == after.output[0].count(" True ") == 4
