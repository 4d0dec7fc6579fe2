"""Objects whose attributes are their items: ``__getattr__ = dict.__getitem__``."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

BAG = """\
class Bag(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__
"""
METHOD = """\
class Bag(dict):
    def __getattr__(self, name):
        return self[name]
"""
DERIVED = BAG + "\n\nclass Context(Bag):\n    pass\n"
PLAIN = "class Bag(dict):\n    pass\n"
PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


CLASS

def wrap(bag):
    FILL


def norm(bag):
    total = sum(p.grad.norm() ** 2 for p in bag.model.parameters())
    dist.all_reduce(total)
    torch.save(bag.model.state_dict(), "state.pt")
    return total


def main():
    bag = Bag()
    bag.net = nn.Linear(4, 4)
    wrap(bag)
    return norm(bag)
"""
FILLS = {
    "an item": 'bag["model"] = FSDP(bag.net)',
    "update": "bag.update(model=FSDP(bag.net))",
    "update with a dictionary": 'bag.update({"model": FSDP(bag.net)})',
    "setdefault": 'bag.setdefault("model", FSDP(bag.net))',
}


def program(fill: str, of: str = BAG) -> str:
    made = PROGRAM.replace("CLASS", of).replace("FILL", fill)
    return made.replace("bag = Bag()", "bag = Context()") if of == DERIVED else made


@pytest.mark.parametrize("of", [BAG, METHOD, DERIVED], ids=["alias", "method", "derived"])
@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS)
def test_an_item_is_an_attribute(fill: str, of: str) -> None:
    after = rewritten(program(fill, of))
    assert "get_model_state_dict(bag.model" in after
    assert "p.grad.to_local().norm()" in after or "own_part(p.grad).norm()" in after


@pytest.mark.parametrize(
    "fill",
    [
        'bag["other"] = FSDP(bag.net)\n    bag.model = nn.Linear(4, 4)',
        'bag.update(other=FSDP(bag.net))\n    bag["model"] = nn.Linear(4, 4)',
        'settings = {}\n    settings["model"] = FSDP(bag.net)\n    bag.model = nn.Linear(4, 4)',
    ],
)
def test_other_items_and_those_of_others_are_not(fill: str) -> None:
    after = rewritten(program(fill))
    assert "torch.save(bag.model.state_dict()" in after
    assert "sum(p.grad.norm() ** 2" in after


def test_items_of_a_plain_dictionary_are_no_attributes() -> None:
    fill = 'bag["model"] = FSDP(bag.net)\n    bag.model = nn.Linear(4, 4)'
    assert "torch.save(bag.model.state_dict()" in rewritten(program(fill, PLAIN))
