"""Norms of gradients that a program computes itself, over the ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import importlib
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 2, bias=False))
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    chosen = getattr(importlib.import_module("trainers"), "Trainer")
    trainer = chosen(model)
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    for step in range(4):
        loss = model(inputs).pow(2).mean()
        loss.backward()
        trainer.clip()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


main()
"""
TRAINERS = """\
import torch
import torch.distributed as dist


class Trainer:
    def __init__(self, model):
        self.model = model

    def clip(self):
        local_norm = torch.norm(
            torch.stack(
                [p.grad.detach().norm(2) for p in self.model.parameters() if p.grad is not None]
            )
        )
        SQUARE
        dist.all_reduce(local_norm, op=dist.ReduceOp.SUM)
        print("reduced", local_norm.item())
        global_norm = local_norm.sqrt()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=global_norm / 4)
"""


SQUARED = """local_norm = local_norm.pow(2)"""
SCALED = """for p in self.model.parameters():
            if p.grad is not None:
                p.grad.mul_(torch.clamp(0.1 / (global_norm + 1e-6), max=1.0))
"""


def test_squares_make_the_norm_of_all(launcher: Launcher, tmp_path: Path) -> None:
    text = TRAINERS.replace("SQUARE", SQUARED)
    text = text[: text.index("torch.nn.utils")] + SCALED
    both = written({"train.py": PROGRAM.encode(), "trainers.py": text.encode()}, tmp_path)
    assert "TODO" not in both.text("trainers.py")
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 16


def test_what_adds_up_norms_runs_and_is_marked(launcher: Launcher, tmp_path: Path) -> None:
    """FSDP1 parted parameters otherwise, so that the number is another."""
    text = TRAINERS.replace("SQUARE", "# as it is")
    both = written({"train.py": PROGRAM.encode(), "trainers.py": text.encode()}, tmp_path)
    assert "not their squares" in " ".join(both.text("trainers.py").replace("#", "").split())
    after = launcher.script(both.after, fsdp1="forbid").numbers("reduced")
    before = launcher.script(both.before, fsdp1="allow").numbers("reduced")
    assert len(after) == len(before)
    assert after[0] != pytest.approx(before[0], rel=1e-4)
