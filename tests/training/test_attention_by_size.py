"""A size-based policy takes attention apart with mixed precision alone, as FSDP1 did."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, written

pytestmark = pytest.mark.train

PROGRAM = """\
import functools
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(64)

    def forward(self, x):
        return self.norm(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4)

    def forward(self, x):
        return self.attention(x, x, x)[0]


def wrapped(model, policy="size", mixed=None):
    if policy == "size":
        units = functools.partial(size_based_auto_wrap_policy, min_num_params=3000)
    elif policy == "none":
        units = None
    else:
        units = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.Linear})
    precision = None
    if mixed:
        precision = MixedPrecision(param_dtype=torch.bfloat16)
    device = torch.device("cpu")
    return FSDP(model, auto_wrap_policy=units, mixed_precision=precision, device_id=device)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = wrapped(Norm() if "norm" in sys.argv else Net(), *sys.argv[2:])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.ones(3, 2, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


main()
"""


def test_without_mixed_precision_attention_stays_whole(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    assert "(recurse and precision != MixedPrecisionPolicy())" in both.text()
    before = launcher.script(both.before, fsdp1="allow").numbers("loss")
    assert len(before) == 3
    after = launcher.script(both.after, fsdp1="forbid").numbers("loss")
    assert after == pytest.approx(before)
