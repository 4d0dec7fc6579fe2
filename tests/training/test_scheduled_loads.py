"""The state of an optimizer whose scheduler adds settings, loaded before the scheduler is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.optim.swa_utils import SWALR


def scheduled(optimizer):
    return SCHEDULE


def run(model, optimizer, schedule, steps):
    for step in steps:
        loss = model(torch.arange(8.0).view(2, 4) / (step + 1) + dist.get_rank()).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        print("loss", loss.item(), "rate", schedule.get_last_lr()[0], flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = scheduled(optimizer)
    run(model, optimizer, schedule, range(3))
    state = FSDP.full_optim_state_dict(model, optimizer, rank0_only=False)
    epoch = schedule.state_dict()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, state))
    schedule = scheduled(optimizer)
    schedule.load_state_dict(epoch)
    run(model, optimizer, schedule, range(3, 6))
    dist.destroy_process_group()


main()
"""


@pytest.mark.parametrize(
    "schedule",
    [
        "OneCycleLR(optimizer, max_lr=0.1, total_steps=9)",
        "OneCycleLR(optimizer, max_lr=0.1, total_steps=9, cycle_momentum=False)",
        "SWALR(optimizer, swa_lr=0.05)",
        "StepLR(optimizer, 2)",
    ],
)
def test_settings_of_a_scheduler_are_loaded(
    schedule: str, launcher: Launcher, tmp_path: Path
) -> None:
    both = written({"train.py": PROGRAM.replace("SCHEDULE", schedule).encode()}, tmp_path)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 24
