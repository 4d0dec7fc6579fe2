"""Optimizers' states in a file of each rank that shares a model's shards, as Bagel saves them."""

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


def train(model, optimizer, steps):
    for step in range(steps):
        optimizer.zero_grad()
        found = model(torch.arange(8.0).view(2, 4) / (step + 1) + dist.get_rank()).square().mean()
        found.backward()
        optimizer.step()
        print("loss", found.item())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank, shards = dist.get_rank(), dist.get_world_size()
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, optimizer, 3)
    path = f"{sys.argv[1]}/{rank}.pt"
    if rank < shards:
        torch.save(optimizer.state_dict(), path)
    dist.barrier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    optimizer.load_state_dict(torch.load(path, weights_only=False))
    train(model, optimizer, 3)
    dist.destroy_process_group()


main()
"""


def test_each_rank_resumes_with_its_own_file(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    text = both.after.read_text()
    assert "torch.save(optimizer.state_dict(), path)" in text
    assert "One rank saves" not in text
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    before = launcher.script(both.before, str(tmp_path / "old"))
    after = launcher.script(both.after, str(tmp_path / "new"), fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) >= 6
