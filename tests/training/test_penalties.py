"""Numbers of parameters that a loss has in it, computed behind the forward."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(7, 7)

    def forward(self, x):
        return torch.tanh(self.layer(x))


def of_all(model):
    return sum(p.pow(2).sum() for p in model.parameters())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FSDP(
        nn.Sequential(Block(), Block(), nn.Linear(7, 1)),
        auto_wrap_policy=functools.partial(
            transformer_auto_wrap_policy, transformer_layer_cls={Block}
        ),
        sharding_strategy=ShardingStrategy.STRATEGY,
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(4):
        x = torch.randn(8, 7)
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        print("loss", loss.item())
        PENALTY
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
"""
PENALTIES = {
    "in place": """penalty = torch.zeros_like(loss)
        for name, p in model.named_parameters():
            if "weight" in name:
                penalty += (torch.sum(p**2) + torch.sum((p.abs() + 0.5) ** -2)) * 0.01
        loss += penalty""",
    "in a function": "loss = loss + 0.01 * of_all(model)",
    "of absolutes": "loss += 0.01 * sum([torch.abs(p).sum() for p in model.parameters()])",
}


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP"])
@pytest.mark.parametrize("penalty", PENALTIES.values(), ids=list(PENALTIES))
def test_it_trains_as_before(
    launcher: Launcher, tmp_path: Path, penalty: str, strategy: str
) -> None:
    text = PROGRAM.replace("PENALTY", penalty).replace("STRATEGY", strategy)
    both = written({"train.py": text.encode()}, tmp_path)
    assert "own part of the parameter, as with FSDP1" in " ".join(
        both.after.read_text().replace("#", "").split()
    )
    assert compare(launcher.script(both.before), launcher.script(both.after)) >= 4
