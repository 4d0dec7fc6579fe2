"""Settings that a property computes, and a mesh that a dictionary has in one case."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import sys
from dataclasses import dataclass
from typing import Optional

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


@dataclass
class Settings:
    half: bool = False
    strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD

    @property
    def precision(self) -> Optional[MixedPrecision]:
        if self.half:
            return MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        return None

    @classmethod
    def load(cls, words):
        made = object.__new__(cls)
        made.__dict__.update(half="half" in words, strategy=ShardingStrategy[words[0]])
        return made


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return x + self.linear(x).relu()


def build(net, settings: Settings):
    mesh = None
    params = {}
    if settings.strategy == ShardingStrategy.HYBRID_SHARD:
        mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2))
        params["device_mesh"] = mesh
    model = FSDP(
        net,
        sharding_strategy=settings.strategy,
        mixed_precision=settings.precision,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device("cpu"),
        **params,
    )
    return model


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    net = nn.Sequential(Block(), Block(), nn.Linear(6, 2))
    model = build(net, Settings.load(sys.argv[1:]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    for step in range(5):
        loss = model(torch.randn(4, 6)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item(), flush=True)
    dist.destroy_process_group()


main()
"""


@pytest.mark.parametrize(
    ("arguments", "ranks"),
    [(("FULL_SHARD",), 2), (("SHARD_GRAD_OP", "half"), 2), (("HYBRID_SHARD", "half"), 4)],
)
def test_trains_the_same(
    launcher: Launcher, tmp_path: Path, arguments: tuple[str, ...], ranks: int
) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    assert "mp_policy = settings.precision or MixedPrecisionPolicy()" in both.text()
    assert "mesh=mesh" in both.text()
    before = launcher.script(both.before, *arguments, ranks=ranks, fsdp1="allow")
    after = launcher.script(both.after, *arguments, ranks=ranks, fsdp1="forbid")
    tolerance = 1e-3 if "half" in arguments else 1e-5
    assert compare(before, after, tolerance=tolerance) == 5 * ranks
