"""A flag that is set in each branch of an ``if``, and asked below: it has one answer from there."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

SOURCE = """\
import os
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(path, device, rounds):
    net = torch.nn.Linear(4, 4)
    if "LOCAL_RANK" in os.environ:
        dist.init_process_group("nccl")
        distributed = True
    else:
        distributed = False
    FIRST
    if distributed:
        model = FSDP(net, use_orig_params=True)
    else:
        model = net.to(device)
    SECOND
    state = torch.load(path)
    if distributed:
        model.load_state_dict(state)
    else:
        model.load_state_dict(state)
    return model
"""
PLAIN = "    else:\n        model.load_state_dict(state)\n"


def text(first: str = "pass", second: str = "pass") -> str:
    return rewritten(SOURCE.replace("FIRST", first).replace("SECOND", second))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("pass", "pass"),
        ("distributed = distributed and torch.cuda.is_available()", "pass"),
        ("pass", "print(distributed)"),
    ],
)
def test_the_other_branch_has_the_plain_model(first: str, second: str) -> None:
    after = text(first, second)
    assert after.count("set_model_state_dict(") == 1
    assert PLAIN in after


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("pass", "distributed = not distributed"),
        ("pass", "for _ in rounds:\n        distributed = next(rounds)"),
        (
            "pass",
            "def reset():\n        nonlocal distributed\n        distributed = False\n    reset()",
        ),
        ("pass", "for distributed in rounds:\n        pass"),
        ("pass", "del distributed\n    distributed = bool(rounds)"),
    ],
)
def test_a_flag_that_changes_below_tells_nothing(first: str, second: str) -> None:
    assert PLAIN not in text(first, second)


def test_an_object_that_is_set_in_branches_is_not_one_setting() -> None:
    source = SOURCE.replace("distributed = True", "args = one()").replace(
        "distributed = False", "args = two()"
    )
    source = source.replace("if distributed", "if args.distributed").replace("FIRST", "pass")
    assert PLAIN not in rewritten(source.replace("SECOND", "args = two()"))
