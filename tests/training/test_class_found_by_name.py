"""A class that a function looks for among the children of a module, by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

FUNCTION = """\
def class_named(module, name):
    children = list(module.children())
    if module.__class__.__name__ == name:
        return module.__class__
    for child in children:
        found = class_named(child, name)
        if found is not None:
            return found
"""
PROGRAM = f"""\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


{FUNCTION}

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(Block(), Block(), nn.Linear(8, 2))
policy = ModuleWrapPolicy({{class_named(net, "Block")}})
model = FSDP(net, auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=True)
# AFTER
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(dist.get_rank())
for step in range(3):
    loss = model(torch.randn(4, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
dist.destroy_process_group()
"""
CHECKPOINTING = """\
apply_activation_checkpointing(
    model, check_fn=lambda module: isinstance(module, class_named(model, "Block"))
)
"""
WITHOUT = '.__name__.removeprefix("FSDP") == name'


@pytest.mark.train
def test_a_class_is_found_by_its_name_after_sharding(launcher: Launcher, tmp_path: Path) -> None:
    program = PROGRAM.replace("# AFTER\n", CHECKPOINTING)
    both = written({"train.py": program.encode()}, tmp_path)
    assert WITHOUT in both.after.read_text()
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 6


def test_before_sharding_the_name_is_the_class_s_own(tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    assert FUNCTION in both.after.read_text()
