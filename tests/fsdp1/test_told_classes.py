"""``isinstance`` with a class of the project's own tells which plugin's objects are met."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

CLASSES = """\
from torch import nn


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module


class Sharded(Wrapper):
    pass


class Zero(Wrapper):
    def state_dict(self):
        return {}
"""
SOURCE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from classes import Sharded, Zero


def build(net, zero):
    return Zero(net) if zero else FSDP(net)


def save(model, other):
    {told}
    return model.state_dict(), model.clip_grad_norm_(1.0)


def main(net, args):
    save(build(net, args.zero), net)
"""
KEEPS_IT = {
    "nothing": "pass",
    "its own class": "assert isinstance(model, (FSDP, Zero))",
    "a class above": "assert isinstance(model, torch.nn.Module)",
    "of another": "assert isinstance(other, Sharded)",
    "perhaps": "assert isinstance(model, Sharded) or model.training",
    "what it is given later": "assert isinstance(model, Sharded)\n    model = zero",
}


def with_(told: str) -> str:
    return SOURCE.replace("{told}", told)


TELLS = {
    "not its class": "assert not isinstance(model, Zero)",
    "returned before": "if isinstance(model, Zero):\n        return None",
    "a branch": "if isinstance(model, Zero):\n        raise TypeError",
}


EITHER = "else model.state_dict()"  # what is written where both are met


@pytest.mark.parametrize("told", TELLS.values(), ids=TELLS)
def test_an_object_that_a_test_tells_apart_is_not_met(told: str) -> None:
    result, after = migrate({"example.py": with_(told), "classes.py": CLASSES})
    assert not any(d.code == "FSDP105" for d in result.decisions)
    assert "fully_shard(net)" in after["example.py"]
    assert EITHER not in after["example.py"]
    assert not migrate(after)[0].changes


@pytest.mark.parametrize("told", KEEPS_IT.values(), ids=KEEPS_IT)
def test_an_object_that_no_test_tells_apart_is_met(told: str) -> None:
    source = with_(told).replace("    model = zero", "    model = build(other, other)")
    _, after = migrate({"example.py": source, "classes.py": CLASSES})
    assert EITHER in after["example.py"]


def test_a_class_that_objects_are_given_later_tells_nothing() -> None:
    given = with_(TELLS["not its class"]) + "\n\ndef become(x):\n    x.__class__ = Sharded\n"
    _, after = migrate({"example.py": given, "classes.py": CLASSES})
    assert EITHER in after["example.py"]
