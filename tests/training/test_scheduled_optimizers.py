"""The schedulers that are made of an early optimizer move behind the sharding with it."""

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


def main(folder):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    # made
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    after = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    rounds = 6
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, after], [2])
    model = FSDP(model, device_id=torch.device("cpu"), use_orig_params=True)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(rounds):
        loss = model(torch.randn(4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        print("loss", loss.item(), "rate", schedule.get_last_lr()[0], flush=True)
    dist.destroy_process_group()


main(sys.argv[1:])
"""


MADE = {
    "of the model": "optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)",
    "of a list": "weights = [p for p in model.parameters() if p.ndim > 1]\n"
    "    optimizer = torch.optim.AdamW(weights, lr=0.05)",
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE.keys())
def test_trains_the_same(made: str, launcher: Launcher, tmp_path: Path) -> None:
    program = PROGRAM.replace("# made", made)
    both = written({"train.py": program.encode()}, tmp_path)
    text = both.after.read_text()
    assert text.index("fully_shard(model") < text.index("AdamW") < text.index("SequentialLR(")
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 24
