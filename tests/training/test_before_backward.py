"""Parameters that are read between a forward and its backward, in functions of their own: the root
has them whole there, and FSDP1 gave this rank's pieces."""

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


def forward(model, step):
    return model(torch.arange(8.0).view(2, 4) / (step + 1) + dist.get_rank()).square().mean()


def weight(model):
    total = sum(p.detach().square().sum() for p in model.parameters())
    dist.all_reduce(total)
    return total


def kept(model):
    return [p.detach().clone() for p in model.parameters()]


def restored(model, copies):
    with torch.no_grad():
        for p, copy in zip(model.parameters(), copies):
            p.lerp_(copy, 0.5)


def objective(model, step):
    loss = forward(model, step)
    return loss * (1 + weight(model) / 1000)


def backward(loss):
    loss.backward()


class Trainer:
    def __init__(self, model):
        self.model = model

    def compute(self, step):
        self.loss = forward(self.model, step)

    def log(self):
        print("weight", weight(self.model).item())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = Trainer(model)
    for step in range(3):
        STEP
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


main()
"""
STEPS = {
    "logged": """\
loss = forward(model, step)
        print("weight", weight(model).item())
        loss.backward()""",
    "in the loss": """\
loss = objective(model, step)
        loss.backward()""",
    "kept": """\
loss = forward(model, step)
        copies = kept(model)
        backward(loss)
        restored(model, copies)""",
    "methods": """\
trainer.compute(step)
        trainer.log()
        loss = trainer.loss
        backward(loss)""",
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_what_is_read_before_the_backward(step: str, launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.replace("STEP", step).encode()}, tmp_path)
    assert ".reshard()" in both.text()
    assert "TODO" not in both.text()
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after) >= 6
