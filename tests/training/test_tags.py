"""A backend that keeps the name of its wrapper gives the same states, whichever it is."""

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


class Backend:
    def __init__(self):
        self.model = None
        self.kind = "none"

    def prepare(self, model, kind):
        if kind == "none":
            self.model = model
            self.kind = "none"
        else:
            if kind == "fsdp":
                model = FSDP(model, device_id=torch.device("cpu"), use_orig_params=True)
                self.kind = "fsdp"
            else:
                model = DDP(model)
                self.kind = "ddp"
            self.model = model
        return self.model

    def state(self):
        if self.kind == "ddp":
            return self.model.module.state_dict()
        if self.kind != "fsdp":
            return self.model.state_dict()
        return self.model.state_dict()


def main(kind):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    backend = Backend()
    model = backend.prepare(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 1)), kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(torch.ones(2, 6) + dist.get_rank()).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    for name, value in backend.state().items():
        print("sum", name, value.sum().item())
    dist.destroy_process_group()


main(*sys.argv[1:])
"""


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp", "none"])
def test_the_same_state_comes_out(wrapper: str, launcher: Launcher, tmp_path: Path) -> None:
    program = written({"train.py": PROGRAM.encode()}, tmp_path)
    runs = [launcher.script(each, wrapper) for each in (program.before, program.after)]
    assert compare(*runs) > 0
    assert runs[1].output == runs[0].output
