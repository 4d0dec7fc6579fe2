"""Models in attributes whose names a loop goes over."""

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
from torch.distributed.fsdp import StateDictType


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.lin(x).relu())


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.actor = Net()
        self.critic = Net()
        for name in ("actor", "critic"):
            wrapped = FSDP(
                getattr(self, name), device_id=torch.device("cpu"), use_orig_params=True
            )
            setattr(self, name, wrapped)
        params = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.AdamW(params, lr=0.05)

    def step(self, x):
        loss = self.actor(x).pow(2).mean() + self.critic(x).mean()
        loss.backward()
        for name in ("actor", "critic"):
            print(name, getattr(self, name).clip_grad_norm_(0.1).item())
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def save(self):
        print("plain", float(sum(isinstance(vars(self)[n], Net) for n in ("actor", "critic"))))
        for name in ("actor", "critic"):
            with FSDP.state_dict_type(getattr(self, name), StateDictType.FULL_STATE_DICT):
                state = getattr(self, name).state_dict()
            for key, value in state.items():
                print(name, key, value.double().norm().item())
        for key, value in self.actor.state_dict().items():
            print("again", key, value.double().norm().item())


dist.init_process_group("gloo")
trainer = Trainer()
torch.manual_seed(1 + dist.get_rank())
for _ in range(3):
    print("loss", trainer.step(torch.randn(4, 8)).item())
trainer.save()
dist.destroy_process_group()
"""


def test_they_train_and_are_saved_alike(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after) > 40
