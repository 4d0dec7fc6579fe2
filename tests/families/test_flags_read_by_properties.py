"""Flags that a property reads: ``config.use_fsdp``, which returns ``self.train.fsdp``."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Train:
    def __init__(self, fsdp=False, other=False):
        self.fsdp = fsdp
        self.other = other


class Config:
    def __init__(self, **kwargs):
        self.train = Train(**kwargs)

    @property
    def use_fsdp(self):
        "Whether the model is sharded."
        return self.train.fsdp

    @property
    def asked(self):
        return self.train.fsdp or self.train.other

    @property
    def use_other(self):
        return self.train.other

    def fsdp_now(self):
        return self.train.fsdp


class Derived(Config):
    @property
    def use_fsdp(self):
        return self.train.other


class Trainer:
    def __init__(self, model, config):
        self.model = model
        self.config = config
        self.settings = config.train

    def save(self):
        if not SECOND:
            torch.save(self.model.state_dict(), "f")


def main(**kwargs):
    config = Config(**kwargs)
    model = nn.Linear(4, 4)
    if FIRST:
        model = FSDP(model)
    Trainer(model, config).save()
"""
KEPT = 'torch.save(self.model.state_dict(), "f")'


def program(first: str, second: str, made: str = "Config") -> str:
    text = PROGRAM.replace("FIRST", first).replace("SECOND", second)
    return text.replace("config = Config(", f"config = {made}(")


@pytest.mark.parametrize("first", ["config.use_fsdp", "config.train.fsdp"])
@pytest.mark.parametrize(
    "second", ["self.config.use_fsdp", "self.config.train.fsdp", "self.settings.fsdp"]
)
def test_a_branch_for_other_models_stays(first: str, second: str) -> None:
    assert KEPT in rewritten(program(first, second))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("config.use_fsdp", "self.config.use_other"),
        ("config.use_fsdp", "self.settings.other"),
        ("config.use_other", "self.settings.fsdp"),
        ("config.asked", "self.settings.fsdp"),
        ("config.fsdp_now()", "self.settings.other"),
    ],
)
def test_a_branch_that_another_flag_chooses_does_not(first: str, second: str) -> None:
    assert KEPT not in rewritten(program(first, second))


def test_a_property_that_a_derived_class_has_of_its_own_is_not_read() -> None:
    found = rewritten(program("config.use_fsdp", "self.settings.fsdp", "Derived"))
    assert KEPT not in found
