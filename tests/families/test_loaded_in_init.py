"""States that an object loads while it is being made, before or after parts of it are sharded."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Base(nn.Module):
    def __init__(self):
        super().__init__()
BASE

    def wrap(self, module):
        return FSDP(module)


class Net(Base):
    def __init__(self, part, path):
        super().__init__()
        self.part = part
        self.head = nn.Linear(4, 1)
BODY

    def forward(self, x):
        return self.head(self.part(x))


def main(path):
    net = Net(nn.Linear(4, 4), path)
    net(torch.zeros(4)).sum().backward()
MORE
"""
LOAD = "self.load_state_dict(torch.load(path))"


def written(body: str, base: str = "pass", more: str = "pass") -> str:
    def indented(text: str, columns: int) -> str:
        return "\n".join(" " * columns + line for line in text.splitlines())

    text = PROGRAM.replace("BASE", indented(base, 8)).replace("BODY", indented(body, 8))
    return rewritten(text.replace("MORE", indented(more, 4)))


@pytest.mark.parametrize(
    "body",
    [
        f"{LOAD}\nself.head = FSDP(self.head)",
        f"{LOAD}\nself.head = self.wrap(self.head)",
        f"if path:\n    {LOAD}\nself.head = self.wrap(self.head)",
    ],
)
def test_what_is_sharded_further_down_is_plain_yet(body: str) -> None:
    assert f"{LOAD}\n" in written(body)


@pytest.mark.parametrize(
    ("body", "base", "more"),
    [
        (f"self.head = self.wrap(self.head)\n{LOAD}", "pass", "pass"),
        (LOAD, "self.body = self.wrap(nn.Linear(2, 2))", "pass"),
        (
            f"for name in ['head', 'part']:\n    {LOAD}\n    self.head = self.wrap(self.head)",
            "pass",
            "pass",
        ),
        (
            f"{LOAD}\nself.head = self.wrap(self.head)",
            "pass",
            "Net(net.wrap(nn.Linear(4, 4)), path)",
        ),
    ],
    ids=["above", "in the base", "in a loop", "given"],
)
def test_what_may_be_sharded_is_loaded_as_such(body: str, base: str, more: str) -> None:
    assert f"{LOAD}\n" not in written(body, base, more)
