"""Classes that a policy computes of the model: once a layer is sharded, its class is another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import functools
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, _or_policy, lambda_auto_wrap_policy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.linear(x).relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block(), Block()])
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def alone(net):
    policy = ModuleWrapPolicy({type(net.layers[-1])})
    return FSDP(net, auto_wrap_policy=policy, device_id=torch.device("cpu"))


def joined(net):
    is_head = functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda m: m is net.head)
    policies = [ModuleWrapPolicy({net.layers[-1].__class__}), is_head]
    policy = functools.partial(_or_policy, policies=policies)
    return FSDP(net, auto_wrap_policy=policy, device_id=torch.device("cpu"))


def main(kind):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = {"alone": alone, "joined": joined}[kind](Net())
    print("units", len(FSDP.fsdp_modules(model)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(torch.ones(2, 4) + dist.get_rank() + step).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


main(sys.argv[1])
"""


@pytest.mark.parametrize("kind", ["alone", "joined"])
def test_every_layer_is_a_unit(kind: str, launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    before = launcher.script(both.before, kind, fsdp1="allow")
    after = launcher.script(both.after, kind, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5, atol=1e-6) >= 4
