"""A model that is made where there is none yet, and saved where there is one."""

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
from torch.nn.parallel import DistributedDataParallel as DDP


class Run:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = None

    def build(self):
        if self.model is None:
            net = nn.Linear(4, 3)
            if hasattr(self.cfg, "sharded") and self.cfg.sharded:
                self.model = FSDP(net, device_id=torch.device("cpu"))
            else:
                self.model = DDP(net)

    def weights(self):
        if self.model is not None:
            if hasattr(self.cfg, "sharded") and self.cfg.sharded:
                return self.model.state_dict()
            return self.model.module.state_dict()
        return {}


class Settings:
    pass


def main(kind):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    cfg = Settings()
    if kind != "absent":
        cfg.sharded = kind == "sharded"
    run = Run(cfg)
    print("before", len(run.weights()))
    run.build()
    optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)
    for step in range(3):
        loss = run.model(torch.ones(2, 4) + dist.get_rank() + step).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    for name, value in run.weights().items():
        print(name, list(value.shape), value.sum().item())
    dist.destroy_process_group()


main(sys.argv[1])
"""


@pytest.mark.parametrize("kind", ["sharded", "plain", "absent"])
def test_its_state_is_whole(kind: str, launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    before = launcher.script(both.before, kind, fsdp1="allow")
    after = launcher.script(both.after, kind, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5, atol=1e-6) > 5
    assert "return self.model.module.state_dict()" in both.after.read_text()
    assert "isinstance(" not in both.after.read_text()
