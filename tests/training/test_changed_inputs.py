"""A list that a unit fills is a copy under FSDP2: marked, and the two ways out train the same."""

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
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Log:
    def __init__(self):
        self.kept = []

    def add_one(self, x):
        self.kept.append(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, seen):
        x = x + self.fc(x).relu()
        seen.append(x.mean())
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        seen = []
        for block in self.blocks:
            x = block(x, seen)
        return x, seen


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    device = torch.device("cpu")
    model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        x, seen = model(torch.ones(2, 4))
        loss = x.square().mean() + sum(seen)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


main()
"""
MARK = "FSDP421"


FILLED = {
    "a list": [],
    "a list in a dictionary": [
        ("seen.append(", 'seen["all"].append('),
        ("seen = []", 'seen = {"all": []}'),
        ("return x, seen", 'return x, seen["all"]'),
    ],
    "an item": [
        ("seen.append(x.mean())", "seen[0] = seen[0] + x.mean()"),
        ("seen = []", "seen = [0.0]"),
    ],
}


@pytest.mark.parametrize("form", FILLED)
def test_a_list_that_is_filled_trains_otherwise_and_is_marked(
    form: str, launcher: Launcher, tmp_path: Path
) -> None:
    program = PROGRAM
    for old, new in FILLED[form]:
        program = program.replace(old, new)
    both = written({"train.py": program.encode()}, tmp_path)
    assert both.text().count(MARK) == 1
    before = launcher.script(both.before, fsdp1="allow").numbers("loss")
    after = launcher.script(both.after, fsdp1="forbid").numbers("loss")
    # The first block's entry is in the copy that the second one got; it is in no list of the root.
    assert after[0] < before[0] - 0.1


WAYS_OUT = {
    "given back": [
        ("        return x\n\n\nclass Net", "        return x, seen\n\n\nclass Net"),
        ("            x = block(", "            x, seen = block("),
    ],
    "in an object": [
        ("seen.append(x.mean())", "seen.add_one(x.mean())"),
        ("        seen = []", "        seen = Log()"),
        ("        return x, seen", "        return x, seen.kept"),
    ],
}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_what_the_marker_advises_trains_the_same(
    launcher: Launcher, tmp_path: Path, way: str
) -> None:
    program = PROGRAM
    for old, new in WAYS_OUT[way]:
        assert program.count(old) == 1
        program = program.replace(old, new)
    both = written({"train.py": program.encode()}, tmp_path)
    assert MARK not in both.text()
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after) == 6
