"""A callback that a trainer runs by its name, and that counts a sharded model over the ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

CALLBACKS = """\
import torch
import torch.distributed as dist


class Callback:
    def on_end(self, trainer):
        pass


class Sizes(Callback):
    def on_end(self, trainer):
        total = torch.tensor(float(sum(p.numel() for p in trainer.model.parameters())))
        dist.all_reduce(total)
        print("total", total.item())
"""
PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from callbacks import Sizes


class Trainer:
    def __init__(self, model, callbacks):
        self.model = model
        self.callbacks = callbacks

    def call(self, name):
        for callback in self.callbacks:
            getattr(callback, name)(self)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        loss = model(torch.arange(8.0).view(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        print("loss", loss.item())
    Trainer(model, [Sizes()]).call("on_end")
    dist.destroy_process_group()


main()
"""


def test_a_callback_counts_each_element_once(launcher: Launcher, tmp_path: Path) -> None:
    files = {"train.py": PROGRAM.encode(), "callbacks.py": CALLBACKS.encode()}
    both = written(files, tmp_path)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    compare(before, after)
    assert after.numbers("total") == [40.0]
