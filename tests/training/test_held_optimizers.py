"""States of an optimizer that an object of the program's own class holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Optimizers:
    def __init__(self, optim: torch.optim.Optimizer):
        self.optim = optim

    @property
    def param_groups(self):
        return self.optim.param_groups

    def step(self):
        self.optim.step()

    def zero_grad(self):
        self.optim.zero_grad()

    def state_dict(self):
        return self.optim.state_dict()

    def load_state_dict(self, state):
        self.optim.load_state_dict(state)


class Sharded(Optimizers):
    def __init__(self, optim, model):
        super().__init__(optim)
        self.model = model


def save(optimizer, path):
    model = optimizer.model
    state = FSDP.full_optim_state_dict(model, optim=optimizer, rank0_only=True)
    if dist.get_rank() == 0:
        torch.save(state, path)


def load(optimizer, path):
    state = torch.load(path)
    part = FSDP.shard_full_optim_state_dict(state, optimizer.model)
    optimizer.load_state_dict(part)


def main(loaded, path):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    if path:
        optimizer = Sharded(optimizer, model)
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    if loaded:
        load(optimizer, loaded)
    for step in range(3):
        loss = model(inputs).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    save(optimizer, path)
    dist.destroy_process_group()


main(*sys.argv[1:])
"""


def test_they_cross_the_migration(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path / "code")
    files = {name: str(tmp_path / f"{name}.pt") for name in ("old", "new", "again")}
    old = launcher.script(both.before, "", files["old"], fsdp1="allow")
    new = launcher.script(both.after, "", files["new"], fsdp1="forbid")
    assert compare(old, new, tolerance=1e-5) == 6
    expected = launcher.script(both.before, files["old"], files["again"], fsdp1="allow")
    assert expected.numbers("loss") != pytest.approx(old.numbers("loss"), rel=1e-3)
    for name in ("old", "new"):
        found = launcher.script(both.after, files[name], files["again"], fsdp1="forbid")
        assert compare(expected, found, tolerance=1e-5) == 6
