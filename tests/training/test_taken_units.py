"""Units of a sharded model that are taken out of their list, and asked for the module in them."""

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


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        return x + self.layer(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(4), Block(4)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FSDP(
        Net(),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    first = next(iter(model.blocks))
    named = dict(model.blocks.named_children())
    last = list(model.blocks.children())[-1]
    for part in (first._fsdp_wrapped_module, named["1"].module):
        part.layer.bias.requires_grad_(False)
    getattr(model.blocks, "0").module.layer.bias.requires_grad_(True)
    print("width", model.get_submodule("blocks")[1].module.layer.in_features)
    print("trained", last.module.layer.bias.requires_grad)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    for step in range(3):
        loss = model(inputs).pow(2).mean()
        loss.backward()
        print("loss", loss.item())
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
"""


def test_they_are_the_modules_themselves(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    assert ".module." not in both.text()
    assert "_fsdp_wrapped_module" not in both.text()
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 6
