"""Settings that a property computes, of an object that nobody in sight makes by its class."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, worst

PROGRAM = """\
import json
from dataclasses import dataclass
from typing import Optional

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision


@dataclass
class Settings:
    dtype: str = "bf16"

    @property
    def precision(self) -> Optional[MixedPrecision]:
        if self.dtype == "bf16":
            return MixedPrecision(param_dtype=torch.bfloat16)
        return None

MORE
def build(net, settings: Settings):
    return FSDP(net, mixed_precision=settings.precision)


def main(net, make):
    return build(net, make(json.load(open("x.json"))))
"""


def after(old: str = "", new: str = "", more: str = "") -> str:
    source = PROGRAM.replace("MORE", more)
    assert old in source
    _, files = migrate({"train.py": source.replace(old, new) if old else source})
    return files["train.py"]


def test_what_a_property_gives_is_written_out() -> None:
    text = after()
    assert "mp_policy = settings.precision or MixedPrecisionPolicy()" in text
    assert "return MixedPrecisionPolicy(param_dtype=torch.bfloat16)" in text
    assert "Optional[MixedPrecisionPolicy]" in text


def test_so_is_what_a_base_or_derived_class_gives() -> None:
    derived = (
        "\nclass Half(Settings):\n    @property\n    def precision(self):\n"
        "        return MixedPrecision(param_dtype=torch.float16)\n\n"
    )
    text = after(more=derived)
    assert text.count("MixedPrecisionPolicy(param_dtype=") == 2
    assert "mp_policy = settings.precision" in text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("settings: Settings", "settings"),
        ("settings: Settings", "settings: Settings | None"),
        ("settings: Settings", "settings: json.JSONDecoder"),
        ("    return FSDP", "    settings = settings.of(net)\n    return FSDP"),
        ("@property", "@computed"),
        (
            "MORE",
            "    @precision.setter\n    def precision(self, value):\n        self.dtype = value\n",
        ),
        ("MORE", "class Derived(Settings):\n    precision = None\n\n"),
    ],
)
def test_what_may_be_set_is_for_the_running_program(old: str, new: str) -> None:
    text = after(more=new) if old == "MORE" else after(old, new)
    assert "fully_shard(" not in text


WITHOUT_ELSE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def build(net, kind):
    if kind == "zero2":
        strategy = ShardingStrategy.SHARD_GRAD_OP
    elif kind == "zero3":
        strategy = ShardingStrategy.FULL_SHARD
    return FSDP(net, sharding_strategy=strategy)
"""


def test_a_strategy_that_is_chosen_without_an_else() -> None:
    """The new name is as sure to be bound as the old one was."""
    result, after = migrate({"example.py": WITHOUT_ELSE})
    assert worst(result) is Outcome.REWRITTEN
    assert "fully_shard(net, reshard_after_forward=reshard_after_forward)" in after["example.py"]
