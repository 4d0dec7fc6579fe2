"""An optimizer that a method of the model builds before it is wrapped moves behind the sharding."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

MODEL = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.inner(x)))

    def configure_optimizers(self, decay, rate):
        found = {name: p for name, p in self.named_parameters()}
        found = {name: p for name, p in found.items() if p.requires_grad}
        groups = [
            {"params": [p for p in found.values() if p.dim() >= 2], "weight_decay": decay},
            {"params": [p for p in found.values() if p.dim() < 2], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=rate)
        return optimizer
"""
PROGRAM = """\
import os

import torch
import torch.distributed as dist
from model import Net
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

several = int(os.environ.get("RANK", -1)) != -1
if several:
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = Net()
optimizer = model.configure_optimizers(0.1, 0.05)
if several:
    model = FSDP(model, use_orig_params=True, device_id=torch.device("cpu"))
torch.manual_seed(1 + dist.get_rank())
for step in range(5):
    loss = model(torch.randn(4, 6)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item(), flush=True)
dist.destroy_process_group()
"""


def test_trains_the_same(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode(), "model.py": MODEL.encode()}, tmp_path)
    text = both.after.read_text()
    assert text.index("fully_shard(model") < text.index("configure_optimizers")
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 10
