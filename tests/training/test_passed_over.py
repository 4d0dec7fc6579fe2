"""Activation checkpointing of the modules in FSDP1's wrappers is not turned off."""

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
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointWrapper,
    apply_activation_checkpointing,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


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

    def wrap_parts(self, settings):
        self.blocks = nn.ModuleList(FSDP(block, **settings) for block in self.blocks)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def check(m):
CHECK


def main(kind):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net()
    if kind == "fsdp":
        net.wrap_parts({"device_id": torch.device("cpu"), "use_orig_params": True})
        model = net
    else:
        model = DDP(net)
    apply_activation_checkpointing(model, check_fn=check)
    print(sum(isinstance(m, CheckpointWrapper) for m in net.modules()), "checkpointed")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        loss = model(torch.ones(2, 6)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


main(*sys.argv[1:])
"""
CHECKS = {
    "clause": "    return isinstance(m, Block) and not isinstance(m, FSDP)",
    "return": "    if isinstance(m, FSDP):\n        return False\n    return isinstance(m, Block)",
}


@pytest.mark.parametrize("check", CHECKS)
def test_as_many_modules_are_checkpointed(check: str, launcher: Launcher, tmp_path: Path) -> None:
    program = written(
        {"train.py": PROGRAM.replace("CHECK\n", f"{CHECKS[check]}\n").encode()}, tmp_path
    )
    for kind in ("fsdp", "ddp"):
        runs = [launcher.script(each, kind) for each in (program.before, program.after)]
        assert compare(*runs) == 6
        assert "3 checkpointed" in runs[1].output[0]
