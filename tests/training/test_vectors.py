"""Vectors of parameters and gradients are of this rank, as FSDP1's were."""

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
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.utils import parameters_to_vector


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.Linear(5, 4)), nn.Linear(4, 1))
    policy = ModuleWrapPolicy({nn.Sequential})
    model = FSDP(
        net, auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=True
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    for step in range(3):
        loss = model(inputs).pow(2).mean()
        loss.backward()
        grads = torch.cat([p.grad.view(-1) for p in model.parameters() if p.grad is not None])
        square = grads.pow(2).sum()
        dist.all_reduce(square)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(inputs)
        whole = parameters_to_vector(model.parameters()).detach().square().sum()
        dist.all_reduce(whole)
        print("gradients", square.item())
        print("parameters", whole.item())
    dist.destroy_process_group()


main()
"""


def test_their_norms_add_up(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 12
