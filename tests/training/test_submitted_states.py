"""What an executor counts of a state in a dictionary, and what is read beside a context's loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

MEASURES = """\
import torch
import torch.distributed as dist


def held(snapshot):
    states = snapshot["optimizer"]["state"].values()
    total = torch.tensor(float(sum(s["exp_avg"].numel() for s in states)))
    dist.all_reduce(total)
    return total.item()


def far(snapshot):
    states = snapshot["optimizer"]["state"].values()
    total = torch.tensor(sum(s["exp_avg"].abs().sum().item() for s in states))
    dist.all_reduce(total)
    return total.item()


MEASURES = {"held": held, "far": far}
"""
TRAIN = """\
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from measures import MEASURES
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, net, measures):
        self.model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.measures = measures
        self.pool = ThreadPoolExecutor(1)

    def fit(self, batches):
        for step, batch in enumerate(batches):
            loss = self.model(batch).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            print("loss", loss.item())
            snapshot = {"step": step, "optimizer": self.optimizer.state_dict()}
            for name in self.measures:
                print(name, self.pool.submit(MEASURES[name], snapshot).result())

    def weights(self):
        with FSDP.summon_full_params(self.model, writeback=False):
            total = sum(p.norm().item() for p in self.model.parameters())
            return total + torch.linalg.matrix_norm(self.model.module[0].weight).item()


dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
trainer = Trainer(net, ["held", "far"])
trainer.fit([torch.arange(8.0).view(2, 4) / (3 + step) + dist.get_rank() for step in range(3)])
print("weights", trainer.weights())
dist.destroy_process_group()
"""


def test_states_and_weights_are_of_all_that_they_were(launcher: Launcher, tmp_path: Path) -> None:
    """States were counted whole on each rank, and one norm was that of this rank's part."""
    files = {"measures.py": MEASURES.encode(), "train.py": TRAIN.encode()}
    both = written(files, tmp_path)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert "held 44" in before.output[0]
    assert compare(before, after, tolerance=1e-5) > 10
