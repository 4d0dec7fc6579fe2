"""A dictionary of arguments that has process groups under a condition: a mesh in their place.

If all else that FSDP1 was told says the same with and without them.
"""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from models import Block

GROUPS = None


def get_kwargs(device, strategy):
    kwargs = {{"auto_wrap_policy": ModuleWrapPolicy({{Block}}){first}}}
{rest}
    return kwargs


def shard(model, device, strategy):
    return FSDP(model, **get_kwargs(device, strategy){at_call})
"""
HYBRID = 'kwargs["sharding_strategy"] = ShardingStrategy.HYBRID_SHARD'
GROUPS = 'kwargs["process_group"] = GROUPS'
BOTH = f"""\
    if GROUPS is not None:
        {HYBRID}
        {GROUPS}
"""
ONLY = f"    if GROUPS is not None:\n        {GROUPS}\n"


def migrated(rest: str, first: str = "", at_call: str = "") -> str:
    source = PROGRAM.format(rest=rest.rstrip("\n"), first=first, at_call=at_call)
    result, after = migrate({"train.py": source})
    assert not result.problems
    assert not result.count(Outcome.LEFT)
    return after["train.py"]


@pytest.mark.parametrize(
    ("rest", "written"),
    [(BOTH, "mesh_of_groups(GROUPS, "), (ONLY, "DeviceMesh.from_group(GROUPS or ")],
    ids=["hybrid or full", "a group or none"],
)
def test_the_mesh_stands_where_the_groups_stood(rest: str, written: str) -> None:
    after = migrated(rest)
    assert f'        kwargs["mesh"] = {written}' in after
    assert "fully_shard(module, **kwargs" in after
    assert "sharding_strategy" not in after


def test_the_mesh_of_all_ranks_is_that_of_the_device() -> None:
    after = migrated(BOTH, ', "device_id": torch.device("cpu")')
    assert '"mesh": mesh' in after
    assert 'mesh = init_device_mesh(torch.device("cpu").type, (dist.get_world_size(),))' in after
    assert "kwargs[\"mesh\"] = mesh_of_groups(GROUPS, torch.device('cpu').type)" in after


FULL = '    else:\n        kwargs["sharding_strategy"] = ShardingStrategy.FULL_SHARD\n'
DEVICE = ', "device_id": torch.device("cpu")'
OF_ALL = 'init_device_mesh(torch.device("cpu").type, (dist.get_world_size(),))'


def test_one_mesh_is_made() -> None:
    after = migrated(BOTH + FULL, DEVICE)
    assert f'else:\n        kwargs["mesh"] = {OF_ALL}' in after
    assert after.count("= init_device_mesh(") == after.count("= mesh_of_groups(GROUPS, ") == 1


@pytest.mark.parametrize(
    "rest",
    [
        BOTH,
        BOTH + FULL.replace("FULL_SHARD", "SHARD_GRAD_OP"),
        BOTH + FULL + '        print("whole")\n',
    ],
    ids=["no else", "an else that says more", "an else that does more"],
)
def test_elsewhere_the_mesh_of_all_ranks_stays(rest: str) -> None:
    after = migrated(rest, DEVICE)
    assert f"    mesh = {OF_ALL}" in after
    assert '"mesh": mesh' in after


def test_strategies_that_keep_parameters_say_so_in_their_places() -> None:
    other = '    else:\n        kwargs["sharding_strategy"] = ShardingStrategy.SHARD_GRAD_OP\n'
    after = migrated(BOTH + other)
    assert after.count('kwargs["reshard_after_forward"] = ') == 2
    assert 'else:\n        kwargs["reshard_after_forward"] = False' in after


@pytest.mark.parametrize(
    ("rest", "first", "at_call"),
    [
        (BOTH, ', "sync_module_states": True', ""),
        (BOTH, "", ", sync_module_states=True"),
        (ONLY, ', "sharding_strategy": ShardingStrategy.HYBRID_SHARD', ""),
        (ONLY, ', "sharding_strategy": ShardingStrategy.NO_SHARD', ""),
        (ONLY, ', "sharding_strategy": strategy', ""),
        (f"    if GROUPS is not None:\n        {GROUPS}\n    {HYBRID}\n", "", ""),
        (f"{BOTH}    if device.index:\n        {HYBRID}\n", "", ""),
        (BOTH, "", ', device_id=torch.device("cpu")'),
        (BOTH, ', "device_id": device', ""),
    ],
    ids=[
        "weights are broadcast",
        "weights are broadcast, at the call",
        "always hybrid",
        "never sharded",
        "a strategy from outside",
        "hybrid without groups",
        "hybrid in another place as well",
        "a device at the call",
        "a device of which nothing is known",
    ],
)
def test_what_depends_on_the_groups_is_decided_when_it_runs(
    rest: str, first: str, at_call: str
) -> None:
    after = migrated(rest, first, at_call)
    assert "**get_kwargs(device, strategy)" in after
    assert 'kwargs["process_group"] = GROUPS' in after
    assert "fully_shard(module, **kwargs" not in after
