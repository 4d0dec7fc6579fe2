"""What a reader of diffs asked for, trained: short policies, defaults in the place of None, and a
model that one of two callers wraps again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import functools
import sys
from typing import Optional

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    StateDictType,
)
from torch.distributed.fsdp.wrap import (
    _or_policy,
    lambda_auto_wrap_policy,
    transformer_auto_wrap_policy,
)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return x + self.linear(x).tanh()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def policy_for(layer):
    def is_head(module):
        return isinstance(module, nn.Linear) and module.out_features == 2

    heads = functools.partial(lambda_auto_wrap_policy, lambda_fn=is_head)
    layers = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=(layer,))
    return functools.partial(_or_policy, policies=[heads, layers])


def sharded(net, low):
    precision: Optional[MixedPrecision] = None
    if low:
        precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = FSDP(
        net,
        auto_wrap_policy=policy_for(Block),
        mixed_precision=precision,
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    return model


def states(model, optimizer, config=None):
    if config is None:
        config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        return model.state_dict(), len(optimizer.param_groups)


def evaluate():
    model = FSDP(sharded(Net(), False), device_id=torch.device("cpu"), use_orig_params=True)
    with torch.no_grad():
        print("loss", model(torch.ones(2, 6)).square().mean().item(), flush=True)


def main(low):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = sharded(Net(), low)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    for step in range(4):
        loss = model(torch.randn(4, 6)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item(), flush=True)
    state, groups = states(model, optimizer)
    if dist.get_rank() == 0:
        total = sum(value.float().sum().item() for value in state.values())
        print("loss", total + groups, flush=True)
    torch.manual_seed(1)
    evaluate()
    dist.destroy_process_group()


main(len(sys.argv) > 1)
"""


@pytest.mark.parametrize("arguments", [(), ("low",)], ids=["float32", "bfloat16"])
def test_it_trains_the_same(arguments: tuple[str, ...], launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    text = both.text()
    assert "return lambda module: is_head(module) or isinstance(module, layer)" in text
    assert "precision: MixedPrecisionPolicy = MixedPrecisionPolicy()" in text
    assert "fully_shard(net, mp_policy=root_mp_policy" in text
    assert "FullStateDictConfig" not in text
    before = launcher.script(both.before, *arguments, fsdp1="allow")
    after = launcher.script(both.after, *arguments, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 11
