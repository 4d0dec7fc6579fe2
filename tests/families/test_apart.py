"""Parameters in code that settings keep apart from where models are sharded."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Flat:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.data = p.data.cpu()

    def step(self):
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                p.data = p.data.cpu()


class Plain:
    def __init__(self, optimizer):
        self.optimizer = optimizer

{more}
def main(net, config):
    model = FSDP(net, use_orig_params=True) if config.fsdp else net
    optimizer = torch.optim.AdamW(model.parameters())
    if {test}:
        wrapped = Flat(optimizer)
    else:
        wrapped = Plain(optimizer)
    if isinstance(wrapped, Flat):
        wrapped.step()
"""
OTHERS = {
    "the same setting": ("config.fsdp", ""),
    "another setting": ("not config.other", ""),
    "handed on": ("not config.fsdp", "KINDS = [Flat]\n\n"),
    "made elsewhere": ("not config.fsdp", "def other(given):\n    return Flat(given)\n\n"),
    "derived from": ("not config.fsdp", "class More(Flat):\n    pass\n\n"),
}


def held(test: str, more: str) -> list[str]:
    result, _ = migrate({"example.py": PROGRAM.format(test=test, more=more)})
    assert not result.problems
    return [d.outcome.value for d in result.decisions if d.code == "FSDP408"]


def test_what_is_only_made_for_models_that_are_not_sharded() -> None:
    assert held("not config.fsdp", "") == []


@pytest.mark.parametrize(("test", "more"), OTHERS.values(), ids=OTHERS)
def test_what_may_be_made_for_sharded_models(test: str, more: str) -> None:
    assert len(held(test, more)) == 2


def test_what_a_registry_may_make() -> None:
    source = PROGRAM.format(test="not config.fsdp", more="").replace(
        "class Flat", "def register(kind):\n    return kind\n\n\n@register\nclass Flat"
    )
    result, _ = migrate({"example.py": source})
    assert len([d for d in result.decisions if d.code == "FSDP408"]) == 2


def test_what_a_test_makes_for_itself() -> None:
    program = PROGRAM.format(test="not config.fsdp", more="")
    helper = "from example import Flat\n\n\ndef flat(optimizer):\n    return Flat(optimizer)\n"
    for name, times in (("tests/helpers.py", 0), ("helpers.py", 2)):
        result, _ = migrate({"example.py": program, name: helper})
        assert len([d for d in result.decisions if d.code == "FSDP408"]) == times
