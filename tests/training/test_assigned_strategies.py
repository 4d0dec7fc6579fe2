"""Strategies that a variable is assigned, one in each branch, some with a mesh of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.migrating import migrate
from tests.training.programs import Launcher, compare, compare_models, written

PROGRAM = """\
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def shard(net, strategy):
    if strategy == "full":
        strategy = ShardingStrategy.FULL_SHARD
    elif strategy == "grads":
        strategy = ShardingStrategy.SHARD_GRAD_OP
    elif strategy == "hybrid":
        strategy = ShardingStrategy.HYBRID_SHARD
    else:
        strategy = ShardingStrategy._HYBRID_SHARD_ZERO2
        if len(sys.argv) > 2:
            strategy = ShardingStrategy.NO_SHARD
    BETWEEN
    return FSDP(
        net,
        sharding_strategy=strategy,
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_id=torch.device("cpu"),
    )


dist.init_process_group("gloo")
torch.cpu.device_count = lambda: 2  # of a machine
torch.manual_seed(0)
net = shard(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)), sys.argv[1])
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
torch.manual_seed(dist.get_rank())
for step in range(4):
    loss = net(torch.randn(4, 8)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item())
dist.destroy_process_group()
"""
PLAIN = PROGRAM.replace("    BETWEEN\n", "")


@pytest.mark.train
@pytest.mark.parametrize(
    "arguments", [("full",), ("grads",), ("hybrid",), ("zero2",), ("none", "whole")]
)
def test_each_branch_trains_the_same(
    launcher: Launcher, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    pair = written({"train.py": PLAIN.encode()}, tmp_path)
    assert "fsdp2_support" not in pair.after.read_text()
    before, after = (
        launcher.script(each, *arguments, ranks=4) for each in (pair.before, pair.after)
    )
    assert compare(before, after) == 4 * 4
    assert compare_models(before, after, tolerance=1e-6)


OTHERWISE = {
    "the processes meet in between": PROGRAM.replace("BETWEEN", 'dist.init_process_group("gloo")'),
    "it is read for something else": PROGRAM.replace("BETWEEN", "print(strategy)"),
    "it is a setting of others": PLAIN.replace(
        "strategy = ShardingStrategy.NO_SHARD", "strategy = getattr(ShardingStrategy, sys.argv[2])"
    ),
    "a mesh is given": PLAIN.replace("device_id=", "device_mesh=net.mesh, device_id="),
    "the device is chosen in between": PROGRAM.replace(
        "BETWEEN", "torch.cuda.set_device(net.rank)"
    ).replace('torch.device("cpu")', "net.rank"),
    "the device may not be the current one": PLAIN.replace('torch.device("cpu")', "net.rank"),
}


@pytest.mark.parametrize("source", OTHERWISE.values(), ids=list(OTHERWISE))
def test_what_has_no_mesh_where_it_is_assigned_is_asked_at_run_time(source: str) -> None:
    _, after = migrate({"train.py": source})
    assert "strategy_kwargs" not in after["train.py"]
    assert "sharding_kwargs" in after["train.py"] or "shard(" in after["train.py"]


def test_a_current_device_needs_no_mesh_for_what_is_over_all_ranks() -> None:
    source = PLAIN.replace('torch.device("cpu")', "torch.cuda.current_device()")
    _, after = migrate({"train.py": source})
    assert "strategy_kwargs = {}" in after["train.py"]
    assert 'strategy_kwargs = {"reshard_after_forward": False}' in after["train.py"]
