"""What others give to a model, in a function of another file, is in it as well."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

NETS = """\
from torch import nn


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, x, mask=None):
        if mask is not None and mask.sum() > 0:
            x = self.low(x)
        return self.up(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.extra = None

    def forward(self, x, mask):
        return self.extra(self.body(x), mask)
"""
PARTS = """\
from torch import nn
from nets import Net, Part


def give(net):
    {}
"""
TRAIN = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

from nets import Net
from parts import give


def main(x):
    net = Net()
    give(net)
    model = FSDP(net, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
    model(x, x).sum().backward()


main(torch.ones(4))
"""
LOW = "part = Part()\n    part.low = nn.Linear(4, 4)\n    "


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (LOW + "net.extra = part", "Part.low"),
        (LOW + 'net.add_module("extra", part)', "Part.low"),
        (LOW + 'setattr(net, "extra", part)', "Part.low"),
        ("net.extra = Part()\n    net.extra.low = nn.Linear(4, 4)", "Part.low"),
        ("net.extra = Part()\n    net.extra.low = nn.ReLU()", ""),
        ("net.extra = nn.Linear(4, 4)", ""),
        (LOW + "net.unused = part", ""),
        ("net.extra = len", ""),
    ],
)
def test_a_part_of_a_part_that_a_step_may_leave_out(given: str, named: str) -> None:
    files = {"train.py": TRAIN, "nets.py": NETS, "parts.py": PARTS.format(given)}
    result, after = migrate(files)
    found = [d for d in result.decisions if d.code == "FSDP420"]
    assert len(found) == bool(named)
    assert named in after["train.py"]


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        ("net.extra = nn.Sequential(nn.BatchNorm1d(4))", True),
        ('net.register_module("extra", nn.BatchNorm1d(4))', True),
        ("net.extra = nn.Sequential(nn.LayerNorm(4))", False),
        ("norm = nn.BatchNorm1d(4)\n    net.extra = nn.Linear(4, 4)", False),
    ],
)
def test_layers_that_fsdp1_keeps_in_full_precision(given: str, is_said: bool) -> None:
    train = TRAIN.replace("FSDP(net, ", "FSDP(net, auto_wrap_policy=ModuleWrapPolicy({Part}), ")
    policy = "from torch.distributed.fsdp.wrap import ModuleWrapPolicy\nfrom nets import Part\n"
    files = {"train.py": policy + train, "nets.py": NETS, "parts.py": PARTS.format(given)}
    _, after = migrate(files)
    assert ("_BatchNorm" in after["train.py"]) is is_said
