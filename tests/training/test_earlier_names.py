"""What is written to a module by the name that it had before it was wrapped."""

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


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    for step in range(4):
        loss = model(inputs).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
        for p in net.parameters():
            p.data = p.data * 1.5
    dist.destroy_process_group()


main()
"""


def test_it_is_written_to_the_sharded_parameters(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    assert "p.data.copy_(p.data * 1.5)" in both.text()
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 8


WRAP = 'FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)'
LOOP = """\
        for p in net.parameters():
            p.data = p.data * 1.5
"""
SCALE = """
def same(it):
    return it


def scale(net):
    for p in net.parameters():
        p.data = p.data * 1.5


"""
BEHIND = {
    "a lambda that wraps": PROGRAM.replace(WRAP, f"(lambda: {WRAP})()"),
    "a function": PROGRAM.replace(LOOP, "        scale(same(net))\n"),
    "a choice": PROGRAM.replace(LOOP, "        scale(net or None)\n"),
}


@pytest.mark.parametrize("program", BEHIND.values(), ids=BEHIND)
def test_the_name_stands_behind(program: str, launcher: Launcher, tmp_path: Path) -> None:
    program = program.replace("\ndef main", SCALE + "def main", 1)
    both = written({"train.py": program.encode()}, tmp_path)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 8


def test_what_is_assigned_is_lost(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    both.after.write_text(
        both.text().replace("p.data.copy_(p.data * 1.5)", "p.data = p.data * 1.5")
    )
    before = launcher.script(both.before, fsdp1="allow")
    naive = launcher.script(both.after, fsdp1="forbid")
    assert before.numbers("loss") != pytest.approx(naive.numbers("loss"), rel=1e-3)
