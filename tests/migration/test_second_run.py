"""What a second run finds of a file whose edits are about something else."""

from __future__ import annotations

import pytest

from fsdp_migrate.migration.engine import Result
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


POLICY_TYPED = """\
import functools

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy, wrap
from torch.distributed.fsdp.wrap import CustomPolicy, size_based_auto_wrap_policy


class Settings:
    name: str | ShardingStrategy = "full_shard"

    @property
    def policy(self) -> TYPE:
        return functools.partial(size_based_auto_wrap_policy, min_num_params=100)

    @property
    def strategy(self):
        if isinstance(self.name, ShardingStrategy):
            return self.name
        return ShardingStrategy[self.name.upper()]

    @property
    def precision(self):
        return MixedPrecision(param_dtype=torch.bfloat16)


class Model:
    def __init__(self, settings: Settings):
        self.settings = settings

    def setup(self, model):
        assert not isinstance(self.settings.policy, ASKED)
        return FSDP(
            model,
            auto_wrap_policy=self.settings.policy,
            sharding_strategy=self.settings.strategy,
            mixed_precision=self.settings.precision,
        )
"""


@pytest.mark.parametrize("asked", ["int", "CustomPolicy", "wrap.ModuleWrapPolicy"])
@pytest.mark.parametrize(
    "written", ["object", "wrap.ModuleWrapPolicy", "wrap.ModuleWrapPolicy | CustomPolicy"]
)
def test_policies_as_types_where_shard_takes_them(written: str, asked: str) -> None:
    source = POLICY_TYPED.replace("TYPE", written).replace("ASKED", asked)
    result, after = migrate({"a.py": source})
    assert Outcome.LEFT not in {d.outcome for d in result.decisions}
    assert "shard(" in after["a.py"]
    assert f"-> {written}:" in after["a.py"]
    again, _ = migrate({"a.py": after["a.py"], "fsdp2_support.py": support(result)})
    assert not again.changes
    assert not [d for d in again.decisions if d.outcome is Outcome.LEFT]


def support(result: Result) -> str:
    return next(new.decode() for path, new in result.changes.items() if "support" in path.name)


def test_a_policy_as_a_type_is_left_where_none_is_made() -> None:
    source = POLICY_TYPED.replace("TYPE", "wrap.ModuleWrapPolicy").replace("ASKED", "int")
    source = source.replace("self.settings.strategy", "ShardingStrategy.FULL_SHARD")
    source = source.replace("            mixed_precision=self.settings.precision,\n", "")
    result, _ = migrate({"a.py": source})
    left = {str(d.site.construct) for d in result.decisions if d.outcome is Outcome.LEFT}
    assert "annotation(ModuleWrapPolicy)" in left
