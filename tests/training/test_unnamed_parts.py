"""A part that nothing runs: weight decay moved it with FSDP1 alone, and the tool says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, written

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.spare = nn.Linear(4, 4)
        nn.init.ones_(self.spare.weight)

    def forward(self, x):
        return self.used(x)


def main():
    dist.init_process_group("gloo")
    model = FSDP(Net(), device_id=torch.device("cpu"), use_orig_params=ORIGINAL)
    optimizer = OPTIMIZER
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print("sum", model.state_dict()["spare.weight"].sum().item())
    dist.destroy_process_group()


main()
"""
ADAMW = "torch.optim.AdamW(model.parameters(), lr=0.1)"
SGD = "torch.optim.SGD(model.parameters(), lr=0.1)"


@pytest.mark.parametrize("original", ["False", "True"])
def test_weight_decay_moved_it_and_does_so_no_more(
    original: str, launcher: Launcher, tmp_path: Path
) -> None:
    source = PROGRAM.replace("ORIGINAL", original).replace("OPTIMIZER", ADAMW)
    both = written({"train.py": source.encode()}, tmp_path)
    assert "FSDP420" in both.text()
    before = launcher.script(both.before, fsdp1="allow").numbers("sum")
    after = launcher.script(both.after, fsdp1="forbid").numbers("sum")
    assert before == pytest.approx([16 * 0.999**3])
    assert after == [16]


def test_without_weight_decay_nothing_differs(launcher: Launcher, tmp_path: Path) -> None:
    source = PROGRAM.replace("ORIGINAL", "True").replace("OPTIMIZER", SGD)
    both = written({"train.py": source.encode()}, tmp_path)
    assert "FSDP420" not in both.text()
    before = launcher.script(both.before, fsdp1="allow").numbers("sum")
    after = launcher.script(both.after, fsdp1="forbid").numbers("sum")
    assert before == after
    assert after == [16]
