"""A module that is asked behind its wrap by the name that it had before trains the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.head = nn.Linear(6, 2)

    def decay(self, rate):
        for p in self.parameters():
            p.data = p.data * rate

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def noise(net, size):
    for p in net.parameters():
        if p.grad is not None:
            p.grad.add_(size)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net()
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    for step in range(3):
        loss = model(inputs).pow(2).mean()
        loss.backward()
        noise(net, 0.01)
        optimizer.step()
        optimizer.zero_grad()
        net.decay(0.9)
        print("loss", loss.item())
    with FSDP.summon_full_params(model):
        print("whole", sum(p.double().sum().item() for p in net.parameters()))
    dist.destroy_process_group()


main()
"""


def test_it_trains_the_same(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after) == 8
