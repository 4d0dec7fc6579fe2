"""Modules or parameters to ignore, of which a function takes either: FSDP1 refuses both."""

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
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.body(x) * self.scale


def sharded(model, modules=None, states=None):
    return FSDP(
        model,
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        ignored_modules=modules,
        ignored_states=states,
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )


def train(net, **ignored):
    model = sharded(net, **ignored)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for step in range(3):
        loss = model(torch.ones(2, 4)).sub(2).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())


dist.init_process_group("gloo")
torch.manual_seed(0)
first, second, third = Net(), Net(), Net()
train(first, modules=[first.body[0]])
train(second, states=[second.scale])
train(third)
dist.destroy_process_group()
"""


def test_trains_the_same(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    text = both.after.read_text()
    assert "ignored_states = [*(modules or ()), *(states or ())]" in text
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after) >= 9
