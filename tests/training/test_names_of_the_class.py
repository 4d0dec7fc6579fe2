"""FSDP1's class under a name that a function gives it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType


def total(model):
    F = FullyShardedDataParallel
    with F.summon_full_params(model, writeback=False):
        return sum(p.abs().sum().item() for p in model.parameters())


def largest(model):
    FSDP = FullyShardedDataParallel
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        return max(v.abs().max().item() for v in model.state_dict().values())


dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 2, bias=False))
model = FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(3):
    loss = model(torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
    print("total", total(model))
    print("largest", largest(model))
dist.destroy_process_group()
"""


def test_a_name_that_a_function_gives_is_followed(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 18
