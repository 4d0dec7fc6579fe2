"""A model that is evaluated, and another that is trained behind it: the first stays gathered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def forward(model, step):
    return model(torch.arange(8.0).view(2, 4) / (step + 1) + dist.get_rank()).square().mean()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    average = FSDP(copy.deepcopy(net), device_id=torch.device("cpu"), use_orig_params=True)
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        with torch.no_grad():
            print("average", forward(average, step).item())
        loss = forward(model, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        READ
        print("loss", loss.item())
    dist.destroy_process_group()


main()
"""
SUM = """\
total = sum(p.detach().square().sum() for p in average.parameters())
        dist.all_reduce(total)
        print("weight", total.item())"""
PIECES = """\
parts = torch.cat([p.detach().flatten() for p in average.parameters()]).square().sum()
        dist.all_reduce(parts)
        print("parts", parts.item())"""
AT_ONCE = """\
with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.5)"""


@pytest.mark.parametrize("read", [SUM, PIECES], ids=["sum", "pieces"])
def test_what_is_read_of_the_other_model(read: str, launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.replace("READ", read).encode()}, tmp_path)
    assert "average.reshard()" in both.text()
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after) == 18


def test_what_is_written_to_it_is_seen_now_and_said(launcher: Launcher, tmp_path: Path) -> None:
    """FSDP1's evaluations did not see it, for no backward had freed what they had gathered."""
    both = written({"train.py": PROGRAM.replace("READ", AT_ONCE).encode()}, tmp_path)
    assert "average.reshard()" in both.text()
    assert "FSDP408" in both.text()
    before = launcher.script(both.before, fsdp1="allow").numbers("average")
    after = launcher.script(both.after, fsdp1="forbid").numbers("average")
    assert before[0] == pytest.approx(after[0], rel=1e-6)
    assert before[-1] != pytest.approx(after[-1], rel=1e-3)
