"""A policy that a library is given as well: that takes FSDP1's object, before and after."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.migrating import migrate
from tests.training.programs import Launcher, compare

pytestmark = pytest.mark.train

LIBRARY = """\
from torch.distributed.fsdp import MixedPrecision


def configure(policy):
    print("half buffers", isinstance(policy, MixedPrecision) and policy.buffer_dtype)
"""
PROGRAM = """\
import torch
import torch.distributed as dist
from library import configure
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    policy = MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
    model = FSDP(net, mixed_precision=policy, device_id=torch.device("cpu"))
    configure(policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    for step in range(4):
        loss = model(torch.randn(4, 6)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item(), flush=True)
    dist.destroy_process_group()


main()
"""


def test_trains_the_same(launcher: Launcher, tmp_path: Path) -> None:
    _, after = migrate({"train.py": PROGRAM})
    for version, files in (("before", {"train.py": PROGRAM}), ("after", after)):
        (tmp_path / version).mkdir()
        for name, text in {**files, "library.py": LIBRARY}.items():
            (tmp_path / version / name).write_text(text)
    before = launcher.script(tmp_path / "before" / "train.py", fsdp1="allow")
    run = launcher.script(tmp_path / "after" / "train.py", fsdp1="forbid")
    assert "half buffers torch.bfloat16" in before.output[0]
    assert compare(before, run, tolerance=1e-3) == 8
