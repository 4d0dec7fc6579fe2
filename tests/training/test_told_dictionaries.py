"""A dictionary of arguments that a line of a log tells of is written as one that nothing reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.migrating import rewritten
from tests.training.programs import Launcher, compare, written

PROGRAM = """\
import functools
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return x + torch.tanh(self.inner(x))


def shard_model(model):
    settings = {}
    settings["mixed_precision"] = MixedPrecision(param_dtype=torch.bfloat16)
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    settings["auto_wrap_policy"] = policy
    settings["sharding_strategy"] = ShardingStrategy.SHARD_GRAD_OP
    settings["device_id"] = torch.device("cpu")
    print(f"FSDP config: {settings}", file=sys.stderr)
    return FSDP(model, **settings)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = shard_model(nn.Sequential(nn.Linear(6, 6), Block(), Block(), nn.Linear(6, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
torch.manual_seed(1 + dist.get_rank())
for step in range(4):
    loss = model(torch.randn(4, 6)).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.train
def test_trains_the_same(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    text = both.after.read_text()
    assert 'print(f"FSDP config: {settings}", file=sys.stderr)' in text
    assert "isinstance(module, Block)" in text
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-2) == 8


@pytest.mark.parametrize(
    "told",
    [
        'print(settings["sharding_strategy"])',
        "print(*settings)",
        "record(settings)",
        "text = str(settings)",
        'print("\\n".join(settings))',
    ],
)
def test_what_reads_more_than_the_whole_is_no_line_of_a_log(told: str) -> None:
    text = rewritten(PROGRAM.replace('print(f"FSDP config: {settings}", file=sys.stderr)', told))
    assert told in text
    assert "shard(model, **settings)" in text
