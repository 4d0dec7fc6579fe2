"""A conversion of an optimizer's state whose result nothing loads: the optimizer goes on as it was,
before and after."""

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


def resume(model, path, rank):
    full = None
    if rank == 0:
        full = torch.load(path, weights_only=False)

    # called from all ranks, though only rank 0 has a state
    sharded = FSDP.scatter_full_optim_state_dict(full, model)

    print("read", rank)


def main(path):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    for step in range(4):
        loss = model(torch.randn(4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
        if step == 1:
            state = FSDP.full_optim_state_dict(model, optimizer)
            if dist.get_rank() == 0:
                torch.save(state, path)
            resume(model, path, dist.get_rank())
    dist.destroy_process_group()


main(*sys.argv[1:])
"""


def test_trains_the_same(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    text = both.after.read_text()
    assert "sharded = " not in text
    assert 'print("read", rank)' in text
    before = launcher.script(both.before, str(tmp_path / "before.pt"))
    after = launcher.script(both.after, str(tmp_path / "after.pt"), fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) >= 4
