"""Functions that take FSDP1's wrapper off where there is one: the same training, and the same
module."""

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


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 4)
        self.head = nn.Linear(4, 2)
        self.classes = 2

    def forward(self, x):
        return self.head(self.body(x).tanh())


def unwrap(module):
    if hasattr(module, "_fsdp_wrapped_module"):
        return module._fsdp_wrapped_module
    raise TypeError(type(module))


def innermost(module):
    while hasattr(module, "_fsdp_wrapped_module"):
        module = module._fsdp_wrapped_module
    return module


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FSDP(Net(), device_id=torch.device("cpu"), use_orig_params=True)
    print("classes", unwrap(model).classes * 1.0, innermost(model).classes * 1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    for step in range(3):
        loss = model(torch.randn(4, 6)).square().mean() / unwrap(model).classes
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


main()
"""


def test_trains_the_same(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    assert "if isinstance(module, FSDPModule)" in both.after.read_text()
    before = launcher.script(both.before)
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) >= 10
