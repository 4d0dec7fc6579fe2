"""Units that run inside summon_full_params are sharded again behind it, as in FSDP1."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FSDP(
        Net(),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        sharding_strategy=ShardingStrategy.STRATEGY,
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(4):
        loss = model(torch.randn(4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad(), FSDP.summon_full_params(model):
            x = torch.randn(4, 6)
            for _ in range(2):
                for block in model.blocks:
                    x = block(x)
            out = model.head(x)
        model.train()
        print("loss", loss.item(), "validated", out.sum().item(), flush=True)
    dist.destroy_process_group()


main()
"""


@pytest.mark.parametrize("strategy", ["SHARD_GRAD_OP", "FULL_SHARD"])
def test_trains_on(strategy: str, launcher: Launcher, tmp_path: Path) -> None:
    """Also with writeback, where FSDP1 writes wrong parts of such units back."""
    program = PROGRAM.replace("STRATEGY", strategy, 1)
    kept = program.replace("full_params(model)", "full_params(model, writeback=False)")
    both = written({"train.py": kept.encode()}, tmp_path / "kept")
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 16
    changed = written({"train.py": program.encode()}, tmp_path / "changed")
    after = launcher.script(changed.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 16
