"""Parameters that a method casts and counts before another one shards their model."""

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


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()

    def cast(self):
        for p in self.model.parameters():
            if p.requires_grad:
                p.data = p.to(torch.float32)
        self.count = sum(p.numel() for p in self.model.parameters())

    def wrap(self):
        self.model = FSDP(self.model, device_id=torch.device("cpu"))

    def fit(self):
        self.cast()
        self.wrap()
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        for step in range(5):
            loss = self.model(torch.randn(4, 6)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print("loss", loss.item() + self.count, flush=True)


dist.init_process_group("gloo")
torch.manual_seed(0)
trainer = Trainer()
torch.manual_seed(1 + dist.get_rank())
trainer.fit()
dist.destroy_process_group()
"""


def test_trains_the_same(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    text = both.after.read_text()
    assert "fully_shard(" in text
    assert "FSDP408" not in text
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 10
