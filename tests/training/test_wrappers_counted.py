"""What is marked of a model's modules is what differs: FSDP1's wrappers are among them."""

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
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


found = {}


def hook(module, args, output):
    found["name"] = type(module).__name__


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    policy = ModuleWrapPolicy({Block})
    model = FSDP(Net(), auto_wrap_policy=policy, device_id=torch.device("cpu"))
    model.register_forward_hook(hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        loss = model(torch.ones(2, 4) * (step + 1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    found["modules"] = len(list(model.modules()))
    found["children"] = len(list(model.children()))
    found["wrapped"] = "_fsdp_wrapped_module" in repr(model)
    found["linear"] = sum(isinstance(m, nn.Linear) for m in model.modules())
    print("found", sorted(found.items()))
    dist.destroy_process_group()


main()
"""
BEFORE = {"name": "FullyShardedDataParallel", "modules": 10, "children": 1, "wrapped": True}
AFTER = {"name": "FSDPNet", "modules": 7, "children": 2, "wrapped": False}


def test_what_is_marked_differs_and_the_rest_does_not(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    text = both.text()
    assert text.count("TODO(fsdp-migrate FSDP425)") == 2
    assert text.count("TODO(fsdp-migrate FSDP413)") == 2
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert before.numbers("loss") == pytest.approx(after.numbers("loss"))
    for run, differs in ((before, BEFORE), (after, AFTER)):
        assert f"found {sorted({**differs, 'linear': 3}.items())}" in run.output[0]
