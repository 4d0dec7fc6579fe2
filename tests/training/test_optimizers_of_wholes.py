"""An optimizer of a whole model of which a part is sharded later trains all of it, as in FSDP1."""

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
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

CPU = torch.device("cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 5), nn.Tanh())
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(2))
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        x = self.encoder(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def of_an_attribute(net):
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    net.encoder = FSDP(net.encoder, device_id=CPU, use_orig_params=True)
    return optimizer


def shard_layers(net):
    for index in range(len(net.layers)):
        net.layers[index] = FSDP(net.layers[index], device_id=CPU, use_orig_params=True)


def of_a_function(net):
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    shard_layers(net)
    return optimizer


def main(kind):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net()
    optimizer = of_an_attribute(net) if kind == "attribute" else of_a_function(net)
    torch.manual_seed(1)
    for step in range(5):
        loss = net(torch.randn(4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item(), flush=True)
    dist.destroy_process_group()


main(*sys.argv[1:])
"""


@pytest.mark.parametrize("kind", ["attribute", "function"])
def test_trains_the_same(kind: str, launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    before = launcher.script(both.before, kind, fsdp1="allow")
    after = launcher.script(both.after, kind, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 10
