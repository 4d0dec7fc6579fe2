"""Sharded models and their units, asked for the class that they were made of, train as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

NETS = """\
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(6, 6)

    def forward(self, x):
        return x + self.inside(x).relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.last = nn.Linear(6, 1)

    def forward(self, x):
        for block in self.blocks:
            if isinstance(block, Block):
                x = 2 * x
            x = block(x)
        return self.last(x)
"""
HELPERS = """\
from nets import Net


def scale(model):
    return 3.0 if issubclass(type(model), Net) else 1.0
"""
PROGRAM = """\
import sys
import types
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel as DDP

from helpers import scale
from nets import Block, Net


def unwrap(model):
    return model.module if isinstance(model, (FSDP, DDP)) else model


def is_block(module):
    kind = type(module)
    return kind is Block


def main(kind):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Net()
    if kind == "units":
        policy = ModuleWrapPolicy({Block})
        model = FSDP(model, auto_wrap_policy=policy, device_id=torch.device("cpu"))
    elif kind == "whole":
        model = FSDP(model, device_id=torch.device("cpu"))
    elif kind == "ddp":
        model = DDP(model)
    rate = 0.01 if not isinstance(model, (Net, Block)) else 0.02
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    print("rate", rate, scale(model), isinstance(unwrap(model), Net))
    held = types.SimpleNamespace(model=model)
    rate += 0.01 if isinstance(vars(held)["model"], Net) else 0.03
    print("rate", rate)
    print("kinds", sum(is_block(m) for m in model.modules()))
    print("visited", sum(isinstance(m, (Net, Block)) for m in model.modules()))
    for step in range(3):
        loss = scale(model) * model(torch.ones(2, 6)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


main(*sys.argv[1:])
"""


def test_the_same_branches_run(launcher: Launcher, tmp_path: Path) -> None:
    files = {"train.py": PROGRAM, "nets.py": NETS, "helpers.py": HELPERS}
    program = written({name: text.encode() for name, text in files.items()}, tmp_path)
    for kind in ("units", "whole", "ddp"):
        runs = [launcher.script(each, kind) for each in (program.before, program.after)]
        assert compare(*runs) == 12  # what is printed, all of it numbers and the same
