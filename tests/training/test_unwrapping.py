"""Programs that take wrappers off in several ways get the same module, whoever wrapped it."""

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


def recursive(m):
    if isinstance(m, (FSDP, DDP)):
        return recursive(m.module)
    return m


def negated(m):
    return m if not isinstance(m, FSDP) else negated(m.module)


def early(m):
    if not isinstance(m, FSDP):
        return m
    return early(m=m._fsdp_wrapped_module)


def there(m):
    if isinstance(m, FSDP):
        return back(m.module)
    return m


def back(model):
    if isinstance(model, DDP):
        return back(model.module)
    return there(model)


def loop(m):
    while True:
        if isinstance(m, FSDP) or isinstance(m, DDP):
            m = m.module
        else:
            return m


def tried(m):
    try:
        return tried(m.module)
    except AttributeError:
        return m


class Keeper:
    def __init__(self, model):
        self.model = model

    def strip(self):
        if isinstance(self.model, FSDP):
            self.model = self.model.module
            return self.strip()
        return self.model


def main(kind):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 1))
    if kind == "fsdp":
        model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    else:
        model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(torch.ones(2, 6) + dist.get_rank()).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    keeper = Keeper(model)
    print(recursive(model) is net, loop(model) is net, tried(model) is net)
    print(back(model) is net)
    for each in (negated, early, there):
        print(each(model) is (net if kind == "fsdp" else model))
    print(keeper.strip() is (net if kind == "fsdp" else model))
    dist.destroy_process_group()


main(*sys.argv[1:])
"""


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_the_same_module_comes_out(wrapper: str, launcher: Launcher, tmp_path: Path) -> None:
    program = written({"train.py": PROGRAM.encode()}, tmp_path)
    runs = [launcher.script(each, wrapper) for each in (program.before, program.after)]
    assert compare(*runs) == 6
    assert "False" not in runs[1].output[0]
