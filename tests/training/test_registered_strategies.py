"""Strategies out of a registry that a decorator fills: what one wraps, the others ask about."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

STRATEGIES = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

TABLE = {}


def register(name):
    def decorate(cls):
        TABLE[name] = cls
        return cls

    return decorate


class Strategy:
    def count(self, model):
        return sum(p.numel() for p in model.parameters())


@register("plain")
class Plain(Strategy):
    def wrap(self, model):
        return model

    def largest(self, model):
        return max(v.abs().max().item() for v in model.state_dict().values())


@register("sharded")
class Sharded(Strategy):
    def wrap(self, model):
        return FullyShardedDataParallel(
            model, device_id=torch.device("cpu"), use_orig_params=True
        )

    def count(self, model):
        total = torch.tensor(float(super().count(model)))
        dist.all_reduce(total)
        return int(total)

    def largest(self, model):
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            return max(v.abs().max().item() for v in model.state_dict().values())


def build(name):
    return TABLE[name]()
"""
TRAIN = """\
import torch
import torch.distributed as dist
from torch import nn

from strategies import build


class Trainer:
    def __init__(self, net, strategy):
        self.strategy = strategy
        self.model = strategy.wrap(net)
        print("parameters", strategy.count(self.model))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)

    def fit(self, batches):
        for batch in batches:
            loss = self.model(batch).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            print("loss", loss.item())
        print("largest", self.strategy.largest(self.model))


dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
trainer = Trainer(net, build("sharded"))
trainer.fit([torch.arange(8.0).view(2, 4) / (3 + step) + dist.get_rank() for step in range(3)])
dist.destroy_process_group()
"""


def test_each_rank_counts_its_own_part(launcher: Launcher, tmp_path: Path) -> None:
    """The count was of whole parameters, once for every rank, where the class was not followed."""
    files = {"strategies.py": STRATEGIES.encode(), "train.py": TRAIN.encode()}
    both = written(files, tmp_path)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert "parameters 44" in before.output[0]
    assert compare(before, after, tolerance=1e-5) == 8
