"""An optimizer that is made anew behind the sharding trains the model, as in FSDP1."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(fsdp):
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    if fsdp:
        model = FSDP(model, device_id=torch.device("cpu"), use_orig_params=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.04)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    return model, optimizer, schedule


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, optimizer, schedule = build(sys.argv[1] == "fsdp")
    torch.manual_seed(1 + dist.get_rank())
    for step in range(5):
        loss = model(torch.randn(4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        print("loss", loss.item(), flush=True)
    dist.destroy_process_group()


main()
"""


@pytest.mark.parametrize("kind", ["fsdp", "alone"])
def test_trains_the_same(kind: str, launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    before = launcher.script(both.before, kind, fsdp1="allow")
    after = launcher.script(both.after, kind, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 10
