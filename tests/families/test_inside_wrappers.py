"""What is asked of the class of the module that FSDP1 wrapped, under the name that it had."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Block, Net

TABLE = {Net: 1}


def main():
    net = Net()
    before = ASKED
    model = FSDP(net)
    return before, ASKED


class Trainer:
    def __init__(self):
        self.net = Net()
        self.other = Net()
        self.model = FSDP(self.net)

    def look(self):
        return OWN
"""
NET = """\
from torch import nn


class Block(nn.Module):
    pass


class Net(nn.Module):
    pass
"""


def program(asked: str, own: str = "3") -> str:
    return rewritten(PROGRAM.replace("ASKED", asked).replace("OWN", own), model=NET)


@pytest.mark.parametrize(
    ("asked", "new"),
    [
        ("type(net) is Net", "isinstance(net, Net)"),
        ("net.__class__ == Net", "isinstance(net, Net)"),
        ("type(net) in (Net, Block)", "isinstance(net, (Net, Block))"),
        ('type(net).__name__ == "Net"', 'type(net).__name__.removeprefix("FSDP") == "Net"'),
        ("open(type(net).__name__)", 'open(type(net).__name__.removeprefix("FSDP"))'),
    ],
)
def test_the_class_of_what_is_wrapped_is_asked_for_otherwise(asked: str, new: str) -> None:
    after = program(asked)
    assert f"before = {asked}" in after
    assert f"return before, {new}" in after


@pytest.mark.parametrize("asked", ["type(model.module) is Net", "model.module.__class__ is Net"])
def test_the_class_of_the_inner_module_is_asked_for_otherwise(asked: str) -> None:
    after = rewritten(
        PROGRAM.replace("before = ASKED\n    ", "before = 3\n    ").replace("ASKED", asked),
        model=NET,
    )
    assert "return before, isinstance(model, Net)" in after


@pytest.mark.parametrize(
    ("own", "new"),
    [
        ("type(self.net) is Net", "return isinstance(self.net, Net)"),
        ("type(self.other) is Net", "return type(self.other) is Net"),
        ("type(Net()) is Net", "return type(Net()) is Net"),
    ],
)
def test_attributes_are_told_apart(own: str, new: str) -> None:
    assert new in program("3", own)


@pytest.mark.parametrize("asked", ["TABLE[type(net)]", "TABLE.get(type(net))"])
def test_what_is_looked_up_by_the_class_is_left(asked: str) -> None:
    after = program(asked)
    assert "TODO(fsdp-migrate FSDP413)" in after
    assert "fully_shard(" not in after.partition("class Trainer")[0]


@pytest.mark.parametrize("asked", ["TABLE[type(3)]", "TABLE[net]", "type(Net()) is Net"])
def test_other_classes_stay(asked: str) -> None:
    after = program(asked)
    assert f"return before, {asked}" in after
    assert "TODO" not in after


def test_what_was_no_wrapper_is_one_now() -> None:
    after = program("isinstance(net, FSDP)")
    assert after.count("TODO(fsdp-migrate FSDP404)") == 1
    assert after.count("isinstance(net, FSDPModule)") == 2


OWN = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def found(module):
    return [m for m in module.modules() if isinstance(m, FSDP)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = LAYER
        self.known = isinstance(self, FSDP)

    def forward(self, x):
        return self.layer(x) * (ASKED)


def main():
    net = Net()
    model = WRAPPED
    return model, sum(isinstance(m, FSDP) for m in model.modules())
"""
ASKED = [
    "isinstance(self, FSDP)",
    "sum(isinstance(m, FSDP) for m in self.modules())",
    "sum(isinstance(m, FSDP) for n, m in self.named_modules())",
    "len(found(self))",
    "len(FSDP.fsdp_modules(self))",
    "sum(type(m).__name__ == 'FullyShardedDataParallel' for m in self.modules())",
]


def own(asked: str, layer: str, wrapped: str) -> str:
    text = OWN.replace("LAYER", layer).replace("ASKED", asked).replace("WRAPPED", wrapped)
    return rewritten(text)


@pytest.mark.parametrize("asked", ASKED)
def test_what_a_wrapped_module_asks_of_itself_is_marked(asked: str) -> None:
    text = own(asked, "nn.Linear(4, 4)", "FSDP(net)")
    assert text.count("# TODO") == 1


@pytest.mark.parametrize("asked", ASKED)
def test_a_module_whose_parts_alone_are_wrapped_sees_no_other_units(asked: str) -> None:
    assert "# TODO" not in own(asked, "FSDP(nn.Linear(4, 4))", "net")


def test_a_module_that_a_policy_may_wrap_is_marked() -> None:
    wrapped = "FSDP(nn.Sequential(net, net), auto_wrap_policy=size_based)"
    assert "was false of the module" in own(ASKED[0], "nn.Linear(4, 4)", wrapped)


TWICE = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(net, other):
    inner = FSDP(net)
    model = FSDP({wrapped})
    print({asked})
"""


@pytest.mark.parametrize(
    ("wrapped", "asked", "new"),
    [
        ("inner", "model.module.module.head", "model.head"),
        ("module=inner", "model.module.module.head", "model.head"),
        ("inner", "model.module.head", "model.head"),
        ("inner", "model.module._fsdp_wrapped_module.head", "model.head"),
        ("other", "model.module.module.head", "model.module.head"),
    ],
)
def test_a_model_that_is_wrapped_twice(wrapped: str, asked: str, new: str) -> None:
    """It has no module inside, nor that one's; what the module itself calls so stays."""
    after = rewritten(TWICE.format(wrapped=wrapped, asked=asked))
    assert f"print({new})" in after
