"""An optimizer and a model that tests stand in for, and that a registry gives in the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PARTS = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Clipper:
    def __init__(self, model: FSDP, limit):
        self.model = model
        self.limit = limit

    def clip(self):
        return self.model.clip_grad_norm_(self.limit)


def load(model: FSDP, optimizer, state):
    whole = state if dist.get_rank() == 0 else None
    optimizer.load_state_dict(FSDP.scatter_full_optim_state_dict(whole, model))
"""
TESTS = """\
import torch
from torch import nn

from parts import Clipper, load


def test_parts():
    model = nn.Linear(2, 2)
    Clipper(model, 1.0).clip()
    load(model, torch.optim.SGD(model.parameters(), lr=0.1), {})
"""
TRAIN = """\
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

import parts


def built(name, *given):
    return getattr(parts, name)(*given)


def main(clipper, loader):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    clip = built(clipper, model, 0.05)

    def step():
        loss = model(torch.ones(2, 4) + dist.get_rank()).pow(2).mean()
        loss.backward()
        print("loss", loss.item(), "norm", clip.clip().item(), optimizer.param_groups[0]["lr"])
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    for _ in range(3):
        step()
    state = FSDP.full_optim_state_dict(model, optimizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    built(loader, model, optimizer, state)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5, last_epoch=2)
    for _ in range(3):
        step()
    dist.destroy_process_group()


main(*sys.argv[1:])
"""


def test_the_program_trains_on_with_the_rate_and_the_norm_of_all(
    launcher: Launcher, tmp_path: Path
) -> None:
    sources = {"train.py": TRAIN, "parts.py": PARTS, "test_parts.py": TESTS}
    both = written({name: text.encode() for name, text in sources.items()}, tmp_path)
    before = launcher.script(both.before, "Clipper", "load", fsdp1="allow")
    after = launcher.script(both.after, "Clipper", "load", fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5, atol=1e-6) > 20
