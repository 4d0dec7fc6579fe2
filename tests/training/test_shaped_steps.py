"""Optimizers of the project's own: by shapes they train otherwise, and are named; by elements they
train the same."""

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


def scaled(update):
    return update / 10 if update.ndim > 1 else update


class Own(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})

    def updates(self):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                state = self.state[p]
                if "average" not in state:
                    state["average"] = torch.zeros_like(p)
                yield p, state["average"].lerp_(p.grad, 0.1)

    @torch.no_grad()
    def step(self, closure=None):
        for p, update in self.updates():
            UPDATE


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = Own(model.parameters())
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    for step in range(3):
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


main()
"""
BY_SHAPE = "p.sub_(scaled(update))"
BY_ELEMENTS = "p.sub_(update.sign() * 0.01)"


def test_a_step_by_shapes_trains_otherwise_and_is_named(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.replace("UPDATE", BY_SHAPE).encode()}, tmp_path)
    assert "FSDP410" in both.text()
    before = launcher.script(both.before, fsdp1="allow").numbers("loss")
    after = launcher.script(both.after, fsdp1="forbid").numbers("loss")
    assert abs(before[-1] - after[-1]) > 1e-3 * before[-1]


def test_a_step_by_elements_trains_the_same(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.replace("UPDATE", BY_ELEMENTS).encode()}, tmp_path)
    assert "FSDP410" not in both.text()
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after) == 6
