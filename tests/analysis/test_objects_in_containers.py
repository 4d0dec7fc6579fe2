"""Objects of the project's own classes in lists and dictionaries: their methods are followed."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
{imported}

class Saver({base}):
    def save(self, model):
        torch.save(model.state_dict(), "x")


class Runner:
    def __init__(self, net, given):
        self.model = FSDP(net)
        self.kept = {kept}
        self.names = ["a", "b"]

    def run(self):
        {use}
"""
MARK = "this is a sharded model"


def marks(kept: str, use: str, base: str = "", imported: str = "") -> bool:
    source = PROGRAM.format(kept=kept, use=use, base=base, imported=imported)
    result, after = migrate({"train.py": source})
    assert not result.problems
    return MARK in after["train.py"].replace("\n        #     ", " ")


@pytest.mark.parametrize(
    ("kept", "use"),
    [
        ("{k: Saver() for k in 'ab'}", "self.kept['a'].save(self.model)"),
        ("{k: Saver() for k in 'ab'}", "[self.kept[k].save(self.model) for k in self.names]"),
        ("[Saver() for _ in 'ab']", "self.kept[0].save(self.model)"),
        ("[Saver(), Saver()]", "for each in self.kept:\n            each.save(self.model)"),
        ("[]; self.kept.append(Saver())", "for s in self.kept:\n            s.save(self.model)"),
        ("{'a': Saver()}", "for s in self.kept.values():\n            s.save(self.model)"),
        ("{'a': Saver()}", "for _, s in self.kept.items():\n            s.save(self.model)"),
    ],
)
@pytest.mark.parametrize(("base", "imported"), [("", ""), ("ABC", "from abc import ABC")])
def test_a_model_is_followed_into_their_methods(
    kept: str, use: str, base: str, imported: str
) -> None:
    assert not marks(kept, use, base, imported)


@pytest.mark.parametrize(
    ("kept", "use", "base", "imported"),
    [
        # What is in it is not seen.
        ("given", "for s in self.kept:\n            s.save(self.model)", "", ""),
        # A base that is not seen may have taken another method's place.
        (
            "{k: Saver() for k in 'ab'}",
            "self.kept['a'].save(self.model)",
            "Base",
            "from x import Base",
        ),
    ],
)
def test_it_is_not_where_too_little_is_seen(kept: str, use: str, base: str, imported: str) -> None:
    assert marks(kept, use, base, imported)


def test_modules_in_a_list_may_be_wrapped_later() -> None:
    """The loop puts a wrapped one in the place of each, so that what made them tells too little."""
    source = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def forward(self, x):
        return x


def build():
    nets = [Net() for _ in range(2)]
    for i, net in enumerate(nets):
        nets[i] = FSDP(net)
    with nets[0].no_sync():
        nets[0](torch.ones(1))
"""
    _, after = migrate({"train.py": source})
    assert "with nets[0].no_sync()" not in after["train.py"]
