"""A policy that nothing used, taken in the place of the one that was."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


class First(nn.Linear):
    pass


class Second(nn.Linear):
    pass


def first():
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={First})
    return policy


def second():
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Second})
    return policy


def build(net):
    return FSDP(net, auto_wrap_policy=first(), device_id=torch.device("cpu"))


dist.init_process_group("gloo")
torch.manual_seed(3)
model = build(nn.Sequential(First(5, 6), nn.Tanh(), Second(6, 6), nn.Tanh(), nn.Linear(6, 2)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
torch.manual_seed(dist.get_rank())
for step in range(4):
    loss = model(torch.randn(4, 5)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item(), flush=True)
dist.destroy_process_group()
"""


def test_it_trains_the_same(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    for script in (both.before, both.after):
        used = (
            script.read_text().replace("= first()", "= second()").replace("=first()", "=second()")
        )
        assert used.count("second()") == 2
        script.write_text(used)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 4 * 2
