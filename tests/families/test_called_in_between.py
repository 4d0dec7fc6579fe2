"""Functions that are called before a name of their module gets its last value."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

setting = FIRST


def build(net):
    return FSDP(net, ARGUMENT=setting)


BETWEEN
setting = SECOND
second = build(nn.Linear(3, 3))
"""
CALLED = "first = build(nn.Linear(3, 3))"
LOOPED = "for _ in range(2):\n    first = build(nn.Linear(3, 3))\n    setting = None"


def program(argument: str, first: str, second: str, between: str) -> str:
    named = {"ARGUMENT": argument, "FIRST": first, "SECOND": second, "BETWEEN": between}
    source = PROGRAM
    for name, text in named.items():
        source = source.replace(name, text)
    return source


@pytest.mark.parametrize(
    ("argument", "first", "second", "written"),
    [
        ("auto_wrap_policy", "None", "ModuleWrapPolicy({nn.Linear})", "setting or ()"),
        ("mixed_precision", "None", "MixedPrecision()", "setting or MixedPrecisionPolicy()"),
        ("cpu_offload", "None", "CPUOffload(True)", "setting or OffloadPolicy()"),
        (
            "sharding_strategy",
            "ShardingStrategy.FULL_SHARD",
            "ShardingStrategy.SHARD_GRAD_OP",
            "setting != ShardingStrategy.SHARD_GRAD_OP",
        ),
    ],
)
@pytest.mark.parametrize("between", [CALLED, LOOPED], ids=["called", "looped"])
def test_both_values_count_where_the_function_is_called_in_between(
    argument: str, first: str, second: str, written: str, between: str
) -> None:
    assert written in rewritten(program(argument, first, second, between))


@pytest.mark.parametrize("between", ["", "print(3)", "other = build"])
def test_the_last_value_counts_where_nothing_calls_the_function_before(between: str) -> None:
    source = program("auto_wrap_policy", "None", "ModuleWrapPolicy({nn.Linear})", between)
    assert "isinstance(module, setting)" in rewritten(source)
