"""What a second run finds of a file whose edits are about something else."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

TRAIN = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def shard(vlm, net):
    return FSDP(net, auto_wrap_policy=vlm.get_policy())
"""
# The policy is asked in another, that picks BatchNorm layers as well.
CAST = TRAIN.replace(
    "get_policy())", "get_policy(), mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))"
).replace("\n\n", "\n\nNORM = torch.nn.BatchNorm2d\n\n", 1)
POLICIES = """\
import functools

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import {name}


def policy_of(least):
    return functools.partial({name}, {argument}=least)


def is_sharded(model):
    return isinstance(model, FSDP)
"""
GIVEN = {
    "size_based_auto_wrap_policy": "min_num_params",
    "transformer_auto_wrap_policy": "transformer_layer_cls",
    "_or_policy": "policies",
}


@pytest.mark.parametrize("train", [TRAIN, CAST], ids=["as it is", "in another"])
@pytest.mark.parametrize("name", GIVEN)
def test_a_policy_that_stays_for_what_is_written_elsewhere_holds_no_edit_back(
    name: str, train: str
) -> None:
    """A policy of which nobody knows who gets it is asked as FSDP1 asked it: nothing is written
    at it, and once no constructor is left a second run has no model for it."""
    util = POLICIES.format(name=name, argument=GIVEN[name])
    result, after = migrate({"train.py": train, "util.py": util})
    assert not result.problems
    assert ("nonwrapped_numel=nonwrapped_numel" in after["train.py"]) == (train is CAST)
    assert "isinstance(model, FSDPModule)" in after["util.py"]
    assert f"functools.partial({name}, " in after["util.py"]
    assert not result.count(Outcome.LEFT)
    assert migrate(after)[1] == after
