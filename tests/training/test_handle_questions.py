"""A program that frees FSDP1's handles by itself trains on, and frees as many parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def is_fsdp(x):
    return isinstance(x, FSDP)


def is_sharded(x):
    return is_fsdp(x) and x.sharding_strategy is not ShardingStrategy.NO_SHARD


def free(x):
    if is_sharded(x) and x._handle is not None:
        x._handle.reshard(True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FSDP(
        nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 1)),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        with torch.no_grad():
            print("before", model(torch.ones(2, 6)).sum().item())
        for m in FSDP.fsdp_modules(model):
            free(m)
        loss = model(torch.ones(2, 6) + dist.get_rank()).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


main()
"""


def test_it_trains_as_before(launcher: Launcher, tmp_path: Path) -> None:
    program = written({"train.py": PROGRAM.encode()}, tmp_path)
    text = program.after.read_text()
    assert "_handle" not in text
    assert "x.reshard()" in text
    runs = [launcher.script(each) for each in (program.before, program.after)]
    assert compare(*runs, tolerance=1e-5) == 12
