"""A registry that is a dictionary, attributes by the names of entries, and parameters handed on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

STRATEGIES = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Registry(dict):
    def register(self, name):
        def decorate(cls):
            self[name] = cls
            return cls

        return decorate

    def build(self, name, *args):
        return self[name](*args)


STRATEGIES = Registry()


@STRATEGIES.register("plain")
class Plain:
    def wrap(self, net):
        return net


@STRATEGIES.register("sharded")
class Sharded(Plain):
    def wrap(self, net):
        return FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)

    def clip(self, model, bound):
        return model.clip_grad_norm_(bound)

    def save(self, model):
        return {name: value.clone() for name, value in model.state_dict().items()}


def hard_update(ours, theirs):
    ours.data = theirs.data.clone()


def soft_update(ours, theirs, tau):
    ours.data.copy_(ours.data * (1 - tau) + theirs.data * tau)
"""
TRAIN = """\
import torch
import torch.distributed as dist
from strategies import STRATEGIES, hard_update, soft_update
from torch import nn


class Roles:
    def __init__(self, strategy, **parts):
        self.strategy = strategy
        for name, part in parts.items():
            setattr(self, name, strategy.wrap(part))

    def keep(self, **things):
        self.__dict__.update(things)


def build():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


dist.init_process_group("gloo")
torch.manual_seed(0)
roles = Roles(STRATEGIES.build("sharded"), online=build(), target=build())
roles.keep(optimizer=torch.optim.Adam(roles.online.parameters(), lr=0.05))
for q, p in zip(roles.target.parameters(), roles.online.parameters()):
    hard_update(q, p)
for step in range(3):
    x = torch.arange(8.0).view(2, 4) / (3 + step) + dist.get_rank()
    loss = (roles.online(x) - 1).pow(2).mean()
    roles.optimizer.zero_grad()
    loss.backward()
    norm = roles.strategy.clip(roles.online, 0.3)
    roles.optimizer.step()
    for q, p in zip(roles.target.parameters(), roles.online.parameters()):
        soft_update(q, p, 0.25)
    print("loss", loss.item(), norm.item())
for name in ("online", "target"):
    saved = roles.strategy.save(getattr(roles, name))
    print(name, sum(value.abs().sum().item() for value in saved.values()))
dist.destroy_process_group()
"""


def test_roles_out_of_a_registry_train_and_save_the_same(
    launcher: Launcher, tmp_path: Path
) -> None:
    """The state was of this rank's part, assigned data were dropped, and the clip stopped it."""
    files = {"strategies.py": STRATEGIES.encode(), "train.py": TRAIN.encode()}
    both = written(files, tmp_path)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 16
