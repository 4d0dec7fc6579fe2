"""BatchNorm under a wrapping policy that may be none: without one FSDP1 cast its buffers too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def wrapped(net, auto_wrap):
    policy = ModuleWrapPolicy({nn.Linear}) if auto_wrap else None
    low = MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16)
    return FSDP(
        net,
        auto_wrap_policy=policy,
        mixed_precision=low,
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )


dist.init_process_group("gloo")
for auto_wrap in (True, False):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    model = wrapped(net, auto_wrap)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    for step in range(3):
        loss = model(torch.randn(4, 8)).float().pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item())
    print(auto_wrap, [b.dtype for _, b in model.named_buffers()])
dist.destroy_process_group()
"""


def test_buffers_of_batch_norm_are_cast_where_there_is_no_policy(
    launcher: Launcher, tmp_path: Path
) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 12
