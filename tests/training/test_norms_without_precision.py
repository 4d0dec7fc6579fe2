"""BatchNorm under mixed precision that may be none: FSDP1 made units of it under one alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        return torch.tanh(self.norm(self.linear(x)))


def by_size(net, mixed):
    kwargs = {
        "auto_wrap_policy": partial(size_based_auto_wrap_policy, min_num_params=50),
        "device_id": torch.device("cpu"),
    }
    if mixed:
        kwargs["mixed_precision"] = MixedPrecision(param_dtype=torch.bfloat16)
    return FSDP(net, **kwargs)


def by_class(net, mixed):
    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    precision = MixedPrecision(param_dtype=torch.bfloat16) if mixed else None
    device = torch.device("cpu")
    return FSDP(net, auto_wrap_policy=policy, mixed_precision=precision, device_id=device)


def at_the_call(net, mixed):
    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return FSDP(
        net,
        auto_wrap_policy=policy,
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16) if mixed else None,
        device_id=torch.device("cpu"),
    )


def always(net):
    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    low = MixedPrecision(param_dtype=torch.bfloat16)
    return FSDP(net, auto_wrap_policy=policy, mixed_precision=low, device_id=torch.device("cpu"))


def never(net):
    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return FSDP(net, auto_wrap_policy=policy, device_id=torch.device("cpu"))


def trained(wrap, *mixed):
    torch.manual_seed(0)
    model = wrap(nn.Sequential(Block(), Block(), nn.Linear(8, 2)), *mixed)
    print("loss", float(sum(isinstance(module, FSDP) for module in model.modules())))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    for step in range(3):
        loss = model(torch.randn(4, 8)).float().pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item())


dist.init_process_group("gloo")
for mixed in (False, True):
    trained(by_size, mixed)
    trained(by_class, mixed)
    trained(at_the_call, mixed)
trained(always)
trained(never)
dist.destroy_process_group()
"""


def test_batch_norm_is_a_unit_under_mixed_precision_alone(
    launcher: Launcher, tmp_path: Path
) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 2 * 4 * 8


def test_a_setting_that_is_always_there_is_asked_nothing(tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    text = both.after.read_text()
    before, always = text.split("def always")
    assert before.count("norms = _BatchNorm if ") == 3
    assert "isinstance(module, _BatchNorm)" in always.split("def never")[0]
    assert "_BatchNorm" not in always.split("def never")[1]
