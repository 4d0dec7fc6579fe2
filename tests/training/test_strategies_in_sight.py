"""Strategies that are asked for at the call: of a function's settings, and by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PACKAGE = 'from .settings import get_settings\n\n__all__ = ["get_settings"]\n'
NET = """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return x + torch.tanh(self.inner(x))
"""
SETTINGS = """\
import torch
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from net import Block


def get_settings(strategy="zero2", offload=False):
    settings = {
        "auto_wrap_policy": ModuleWrapPolicy({Block}),
        "mixed_precision": MixedPrecision(param_dtype=torch.bfloat16),
        "backward_prefetch": BackwardPrefetch.BACKWARD_PRE,
        "device_id": torch.device("cpu"),
        "use_orig_params": True,  # for torch.compile
    }
    if strategy == "zero2":
        settings["sharding_strategy"] = ShardingStrategy.SHARD_GRAD_OP
    elif strategy == "zero3":
        settings["sharding_strategy"] = ShardingStrategy.FULL_SHARD
    else:
        raise ValueError(strategy)
    if offload:
        settings["cpu_offload"] = CPUOffload(offload_params=True)
    return settings


if __name__ == "__main__":
    shown = get_settings()
    print(f"It has {shown.keys()}")
"""
HEAD = """\
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
"""
OF_SETTINGS = """\
from pkg import get_settings
from net import Block


def build(model, name):
    settings = get_settings(strategy=name)
    return FSDP(model, **settings)


def built(model):
    return build(model, sys.argv[1])
"""
BY_NAME = """\
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from net import Block


def build(model, strategy):
    chosen = getattr(ShardingStrategy, strategy)
    return FSDP(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        sharding_strategy=chosen,
        device_id=torch.device("cpu"),
    )


def built(model):
    if sys.argv[1] == "zero2":
        return build(model, "SHARD_GRAD_OP")
    return build(model, "FULL_SHARD")
"""
LOOP = """

dist.init_process_group("gloo")
torch.manual_seed(0)
model = built(nn.Sequential(nn.Linear(6, 6), Block(), Block(), nn.Linear(6, 3)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(1 + dist.get_rank())
for step in range(4):
    loss = model(torch.randn(4, 6)).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
@pytest.mark.parametrize("program", [OF_SETTINGS, BY_NAME], ids=["settings", "names"])
def test_trains_the_same(launcher: Launcher, tmp_path: Path, program: str, strategy: str) -> None:
    files = {"train.py": HEAD + program + LOOP, "net.py": NET}
    if program is OF_SETTINGS:
        files |= {"pkg/__init__.py": PACKAGE, "pkg/settings.py": SETTINGS}
    both = written({name: text.encode() for name, text in files.items()}, tmp_path)
    assert "sharding_kwargs" not in both.text()
    assert "reshard_after_forward" in both.text()
    before = launcher.script(both.before, strategy, fsdp1="allow")
    after = launcher.script(both.after, strategy, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-2) == 8


BY_SIZE = """\
from functools import partial

from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)))
policy = partial(size_based_auto_wrap_policy, min_num_params=60)
model = FSDP(model, auto_wrap_policy=policy, device_id=torch.device("cpu"))
"""


def test_a_script_trains_the_same_by_size(launcher: Launcher, tmp_path: Path) -> None:
    loop = LOOP[LOOP.index("optimizer =") :]
    both = written({"train.py": (HEAD + BY_SIZE + loop).encode()}, tmp_path)
    assert "units_by_size(model, 60)" in both.text()
    assert not (both.after.parent / "fsdp2_support.py").exists()
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 8
