"""A state of another object's, which one rank alone asks for in the context of a model's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import pickle

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


class Saver:
    def __init__(self, model, first):
        self.model, self.first = model, first

    def step(self):
        with FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT):
            state = self.model.state_dict()
            self.save(state)

    def save(self, state):
        if dist.get_rank() == 0:
            print("state", len(state), sum(v.double().sum() for v in state.values()).item())


class BothSaver(Saver):
    def save(self, state):
        super().save(state)
        if dist.get_rank() == 0:
            whole = pickle.loads(self.first)
            print("first", sum(v.double().sum() for v in whole.state_dict().values()).item())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
    first = pickle.dumps(net)
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    for saver in (Saver(model, first), BothSaver(model, first)):
        loss = model(torch.randn(4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
        saver.step()
    dist.destroy_process_group()


main()
"""


def test_trains_and_saves_the_same(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    assert "state_dict_type" not in both.after.read_text()
    assert "Some ranks alone ask for a state" in both.after.read_text()
    before = launcher.script(both.before)
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-6) >= 5
