"""States of an optimizer that a program adds up over the ranks."""

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


def shown(name, total):
    dist.all_reduce(total)
    print(name, total.item())


def of_parameters(model, optimizer):
    total = torch.zeros(())
    for p in model.parameters():
        if "exp_avg" in optimizer.state[p]:
            total += optimizer.state[p]["exp_avg"].sum()
    return total


def of_groups(optimizer):
    total = torch.zeros(())
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = optimizer.state[p]
            if "exp_avg" in state:
                total = total + state["exp_avg"].norm() ** 2
    return total


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    for step in range(3):
        model(inputs).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        shown("of parameters", of_parameters(model, optimizer))
        shown("of groups", of_groups(optimizer))
        squares = sum(s["exp_avg_sq"].sum() for s in optimizer.state.values() if "exp_avg_sq" in s)
        shown("of all", squares)
    dist.destroy_process_group()


main()
"""


def test_they_add_up(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    assert "TODO" not in both.text()
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 18
