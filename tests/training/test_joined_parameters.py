"""Vectors that gradients are put behind one by one, and distances that a step went."""

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


def join(vector, p):
    return torch.cat((vector, p.grad.reshape(-1)))


def shown(name, vector):
    total = vector.double().pow(2).sum()
    dist.all_reduce(total)
    print(name, total.item())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    params = list(model.parameters())
    for _ in range(2):
        before = [p.detach().clone() for p in params]
        loss = model(torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        print("loss", loss.item())
        flat = torch.zeros(0)
        for p in model.parameters():
            if p.grad is None:
                continue  # FSDP1 has nothing of it on this rank
            flat = torch.cat([flat, p.grad.view(-1)])
        shown("in a loop", flat)
        held = [p for p in model.parameters() if p.grad is not None]
        shown("reduced", functools.reduce(join, held, torch.zeros(0)))
        shown(
            "by a lambda",
            functools.reduce(
                lambda a, p: torch.cat([a, p.grad.flatten()]), held, torch.zeros(0)
            ),
        )
        shown("by a function", torch.cat([torch.flatten(p.grad).abs() for p in held]))
        optimizer.step()
        moved = sum((p.detach() - q).norm() ** 2 for p, q in zip(params, before))
        dist.all_reduce(moved)
        print("moved", moved.item())
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
"""


def test_they_have_this_ranks_parts(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after) == 24
