"""``forward`` of parts of a model: as units of their own they gather when they are called."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

NET = """\
import torch.nn as nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.schedule = Schedule()

    def forward(self, x):
        return self.inner(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Block()
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
{body}


class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return self.block.forward(x)


class Schedule:
    def forward(self, x):
        return x
"""
TRAIN = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from net import Block, Net

model = FSDP(Net(){policy})
model(x)
{after}
"""
POLICY = ", auto_wrap_policy=ModuleWrapPolicy({Block})"


def run(body: str, policy: str = POLICY, after: str = "") -> dict[str, str]:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    files = {
        "net.py": NET.format(body=lines),
        "train.py": TRAIN.format(policy=policy, after=after),
    }
    return migrate(files)[1]


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("return self.first.forward(x)", "return self.first(x)"),
        ("return self.blocks[0].forward(x)", "return self.blocks[0](x)"),
        ("for b in self.blocks:\n    x = b.forward(x)\nreturn x", "x = b(x)"),
        ("for i, b in enumerate(self.blocks):\n    x = b.forward(x)\nreturn x", "x = b(x)"),
        ("block = self.first\nreturn block.forward(x)", "return block(x)"),
    ],
)
def test_units_are_called(body: str, written: str) -> None:
    assert f"{written}\n" in run(body)["net.py"]


@pytest.mark.parametrize("path", ["model.first", "model.module.first", "model.module.blocks[1]"])
def test_units_are_called_from_outside(path: str) -> None:
    after = run("return self.first(x)", after=f"y = {path}.forward(x)")["train.py"]
    assert f"y = {path.replace('module.', '')}(x)" in after
    assert "TODO" not in after  # the whole model has run


def test_a_part_that_comes_first_is_marked() -> None:
    source = TRAIN.format(policy=POLICY, after="").replace("model(x)", "y = model.first.forward(x)")
    files = {"net.py": NET.format(body="        return self.first(x)"), "train.py": source}
    after = migrate(files)[1]["train.py"]
    assert "TODO(fsdp-migrate FSDP409): The whole model" in after
    assert "y = model.first(x)" in after


@pytest.mark.parametrize(
    ("body", "policy"),
    [
        ("return self.inner.forward(x)", POLICY),  # no unit of that policy
        ("return self.first.forward(x)", ""),  # no units at all
        ("return self.forward_features(x)", POLICY),
        ("return self.schedule.forward(x)", POLICY),
        ("return super().forward(x)", POLICY),
        ("return Block.forward(self, x)", POLICY),
    ],
)
def test_what_is_no_unit_stays(body: str, policy: str) -> None:
    after = run(body, policy)["net.py"]
    assert body in after
    assert "TODO" not in after


def test_what_is_no_module_stays() -> None:
    after = run("return self.first(x)", after="y = model.schedule.forward(x)")["train.py"]
    assert "y = model.schedule.forward(x)" in after


def test_a_class_that_no_model_is_made_of_stays() -> None:
    after = run("return self.first.forward(x)")["net.py"]
    assert "return self.block.forward(x)" in after


def test_what_nobody_knows_is_marked() -> None:
    after = run("return self.made_elsewhere.forward(x)")["net.py"]
    assert "TODO(fsdp-migrate FSDP409): This was a call of its forward" in after


@pytest.mark.parametrize("fallback", ["None", "torch.nn.Identity()"])
def test_a_compiled_extension_is_a_module_of_pythons_and_stays(fallback: str) -> None:
    """Nobody can call one; unless what is there otherwise is a module of torch's."""
    source = f"""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from torch.utils.cpp_extension import load


class Repeat(nn.Module):
    def __init__(self):
        super().__init__()
        try:
            self.kernel = load(name="repeat", sources=["repeat.cpp"])
        except Exception:
            self.kernel = {fallback}
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer.forward(self.kernel.forward(x))


model = FSDP(Repeat(), auto_wrap_policy=size_based_auto_wrap_policy)
"""
    after = migrate({"example.py": source})[1]["example.py"]
    assert "self.layer(self.kernel" in after
    assert ("self.kernel.forward(x)" in after) == (fallback == "None")
