"""Gradients in ``summon_full_params`` without ``with_grads``: pieces with FSDP1, none now."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, written

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main():
    dist.init_process_group("gloo")
    model = FSDP(nn.Linear(4, 4), device_id=torch.device("cpu"), use_orig_params=True)
    model(torch.ones(2, 4)).sum().backward()
    with FSDP.summon_full_params(model, writeback=False):
        kept = [p.grad for p in model.parameters() if p.grad is not None]
    with FSDP.summon_full_params(model, writeback=False):
        for p in model.parameters():
            p.grad = None
    left = [p.grad for p in model.parameters() if p.grad is not None]
    print("lengths", len(kept) > 0, len(left))
    dist.destroy_process_group()


main()
"""


def test_they_are_none_now_and_are_marked(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    assert "Without with_grads=True FSDP1 left this rank's pieces" in both.text()
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert "lengths True 0" in before.output[0]
    assert "lengths False 2" in after.output[0]
