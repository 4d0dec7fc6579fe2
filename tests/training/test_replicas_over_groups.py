"""NO_SHARD over a group of ranks, or a mesh: each keeps the whole, and they share gradients."""

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


def build(group):
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
    return FSDP(
        model,
        process_group=group,
        sharding_strategy=ShardingStrategy.NO_SHARD,
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    torch.manual_seed(rank % 2)
    model = build(pairs[rank % 2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(rank)
    for step in range(4):
        loss = model(torch.randn(4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item(), flush=True)
    dist.destroy_process_group()


main()
"""


SLICE = (
    PROGRAM.replace("process_group=group", "device_mesh=group")
    .replace("    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]\n", "")
    .replace("build(pairs[rank % 2])", 'build(ranks["copies"])')
    .replace(
        '    dist.init_process_group("gloo")\n',
        '    dist.init_process_group("gloo")\n'
        '    ranks = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "parts"))\n',
    )
    .replace(
        "from torch.distributed.fsdp",
        "from torch.distributed.device_mesh import init_device_mesh\nfrom torch.distributed.fsdp",
    )
)
PLANE = SLICE.replace('ranks["copies"]', "ranks")
NONE = SLICE.replace('ranks["copies"]', "None").replace("torch.manual_seed(rank % 2)", "")


@pytest.mark.parametrize(
    "program", [PROGRAM, SLICE, PLANE, NONE], ids=["group", "slice", "two dimensions", "no mesh"]
)
def test_trains_the_same(launcher: Launcher, tmp_path: Path, program: str) -> None:
    both = written({"train.py": program.encode()}, tmp_path)
    assert "use_local_synchronization" in both.after.read_text()
    before = launcher.script(both.before, fsdp1="allow", ranks=4)
    after = launcher.script(both.after, fsdp1="forbid", ranks=4)
    assert compare(before, after, tolerance=1e-5) == 16
