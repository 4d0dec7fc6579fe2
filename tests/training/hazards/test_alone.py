"""What one rank does alone, and all have to do (FSDP915)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.hazards import codes
from tests.training.programs import Launcher

pytestmark = pytest.mark.train

PROGRAM = """\
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo", timeout=timedelta(seconds=WAIT))
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
fully_shard(model, mesh=mesh)
options = StateDictOptions(full_state_dict=True)
began = time.monotonic()
BODY
print("took", time.monotonic() - began)
"""
WAIT = 2
ALONE = {
    "forward": "output = model(torch.ones(2, 4))",
    "whole state": "state = get_model_state_dict(model, options=options)",
    "full tensors": "state = {k: v.full_tensor() for k, v in model.state_dict().items()}",
    "sharded checkpoint": 'dcp.save({"model": model.state_dict()}, checkpoint_id="kept")',
}


@pytest.mark.parametrize("how", ALONE)
def test_one_rank_waits_until_it_fails(launcher: Launcher, tmp_path: Path, how: str) -> None:
    body = f"if rank == 0:\n    {ALONE[how]}\nelse:\n    time.sleep({WAIT + 1})"
    wrong = PROGRAM.replace("BODY", body).replace("WAIT", str(WAIT))
    assert codes(wrong) == ["FSDP915"]
    script = tmp_path / "train.py"
    script.write_text(wrong)
    run = launcher.script(script, fails=True, fsdp1="forbid")
    assert run.codes[0] != 0
    assert "imed out" in run.errors[0]
    assert not run.timed_out


@pytest.mark.parametrize("how", ALONE)
def test_all_together_go_on(launcher: Launcher, tmp_path: Path, how: str) -> None:
    right = PROGRAM.replace("BODY", ALONE[how]).replace("WAIT", "30")
    assert codes(right) == []
    script = tmp_path / "train.py"
    script.write_text(right)
    (took,) = launcher.script(script, fsdp1="forbid").numbers("took")
    assert took < 30
