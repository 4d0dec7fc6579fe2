"""States that a later round of the loop goes back to, however it comes there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Run:
    def __init__(self):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
        self.model = FSDP(
            net,
            auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
        FSDP.set_state_dict_type(self.model, KIND)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.count = 0

    def one(self):
        self.count += 1
        loss = (self.model(torch.ones(2, 4) + dist.get_rank()) - self.count).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        print("loss", loss.item())

    def two(self):
        self.one()
        self.one()

    def load(self, saved):
        if saved is not None:
            self.model.load_state_dict(saved)

    def continuing(self):
        for n in range(5):
            self.one()
            if n != 1:
                if n == 3:
                    self.load(saved)
                continue
            saved = self.model.state_dict()

    def branching(self):
        for n in range(5):
            self.two()
            if n == 1:
                saved = self.model.state_dict()
            elif n == 3:
                self.load(saved)

    def matching(self):
        for n in range(5):
            self.one()
            match n:
                case 1:
                    saved = self.model.state_dict()
                case 3:
                    self.load(saved)

    def failing(self):
        saved = None
        for n in range(5):
            try:
                self.one()
                if n == 3:
                    raise ValueError(n)
                saved = self.model.state_dict()
            except ValueError:
                self.load(saved)

    def choosing(self):
        saved = None
        for n in range(5):
            self.one()
            saved = self.model.state_dict() if n == 1 else saved
            n == 3 and self.load(saved)

    def changing(self):
        due, saved = True, None
        for n in range(5):
            self.one()
            if due:
                saved = self.model.state_dict()
            due = n > 2
            if due:
                self.load(saved)

    def ending(self):
        for n in range(5):
            saved = self.model.state_dict()
            self.one()
        else:
            self.load(saved)
        self.one()

    def swapping(self):
        self.one()
        first = copy.deepcopy(self.model.state_dict())
        self.two()
        saved = self.model.state_dict()
        self.load(first)
        with torch.no_grad():
            print("loss", self.model(torch.ones(2, 4)).sum().item())
        self.load(saved)
        self.one()

    def converting(self):
        for n in range(5):
            self.one()
            if n == 1:
                saved = {k: v.cpu() for k, v in self.model.state_dict().items()}
            elif n == 3:
                self.load(saved)

    def going_back(self, saved):
        self.two()
        self.load(saved)
        self.one()

    def given(self):
        self.going_back(self.model.state_dict())

    def optimizers(self):
        saved = None
        for n in range(7):
            self.one()
            if n == 1:
                saved = FSDP.optim_state_dict(self.model, self.optimizer)
                continue
            if n == 3:
                state = FSDP.optim_state_dict_to_load(self.model, self.optimizer, saved)
                self.optimizer.load_state_dict(state)

    def give_back(self, saved):
        self.two()
        state = FSDP.optim_state_dict_to_load(self.model, self.optimizer, saved)
        self.optimizer.load_state_dict(state)
        self.one()
        self.one()

    def given_optimizers(self):
        self.one()
        self.give_back(FSDP.optim_state_dict(self.model, self.optimizer))


dist.init_process_group("gloo")
print("continuing")
Run().continuing()
print("branching")
Run().branching()
print("matching")
Run().matching()
print("failing")
Run().failing()
print("choosing")
Run().choosing()
print("changing")
Run().changing()
print("ending")
Run().ending()
print("swapping")
Run().swapping()
print("converting")
Run().converting()
print("given")
Run().given()
print("optimizers")
Run().optimizers()
print("given_optimizers")
Run().given_optimizers()
dist.destroy_process_group()
"""


KINDS = {
    "sharded": "StateDictType.SHARDED_STATE_DICT",
    "whole": "StateDictType.FULL_STATE_DICT",
    "whole on the device": (
        "StateDictType.FULL_STATE_DICT,"
        " FullStateDictConfig(), FullOptimStateDictConfig(offload_to_cpu=False)"
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_training_goes_back_to_what_it_was(kind: str, launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.replace("KIND", KINDS[kind]).encode()}, tmp_path)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-4, atol=1e-5) > 90
