"""Units that a policy function writes down at their parent, as one loop asks for them."""

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
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.output = nn.Linear(4, 2)
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x):
        return self.output(self.blocks(x))


def by_label(classes):
    def policy(module, recurse, **kwargs):
        if isinstance(module, Decoder):
            module.output.is_unit = True
        if recurse:
            return True
        if getattr(module, "is_unit", False):
            return True
        return isinstance(module, tuple(classes))

    return policy


def policy_of(label, classes):
    if label:
        return by_label(classes)
    return ModuleWrapPolicy(classes)


def main(label, whole):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Decoder() if whole == "root" else nn.Sequential(Decoder(), nn.Tanh())
    policy = policy_of(label == "label", {Block})
    model = FSDP(net, auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=True)
    print("units", sum(isinstance(m, FSDP) for m in model.modules()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(4):
        loss = model(torch.ones(2, 4) + dist.get_rank()).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


main(*sys.argv[1:])
"""


@pytest.mark.parametrize("arguments", [("label", "root"), ("label", "inside"), ("classes", "root")])
def test_they_are_the_same_units(
    arguments: tuple[str, str], launcher: Launcher, tmp_path: Path
) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    before = launcher.script(both.before, *arguments, fsdp1="allow")
    after = launcher.script(both.after, *arguments, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5, atol=1e-6) >= 5
    assert "shard_by_policy" not in both.after.read_text()
