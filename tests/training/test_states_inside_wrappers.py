"""States of ``model.module``, where every parameter is in a unit inside and where DDP has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel as DDP


def build(sharded):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    if sharded:
        policy = ModuleWrapPolicy({nn.Linear})
        return FSDP(net, auto_wrap_policy=policy, device_id=torch.device("cpu"))
    return DDP(net)


def show(state):
    for name, value in state.items():
        print(name, tuple(value.shape), float(value.double().sum()))


def main():
    dist.init_process_group("gloo")
    for sharded in [SHARDED]:
        model = build(sharded)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(3):
            loss = model(torch.ones(3, 4)).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print("loss", loss.item())
            state = {n: v.clone() * 2 for n, v in model.module.state_dict().items()}
            model.module.load_state_dict(state)
        show(model.module.state_dict())
    dist.destroy_process_group()


main()
"""


@pytest.mark.parametrize("sharded", ["True", "False"])
def test_states_are_whole(launcher: Launcher, tmp_path: Path, sharded: str) -> None:
    source = PROGRAM.replace("SHARDED", f'bool(os.environ.get("ANY", "1")) is {sharded}')
    both = written({"train.py": source.encode()}, tmp_path)
    text = both.after.read_text()
    assert "model.module" not in text
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid" if sharded == "True" else "allow")
    assert compare(before, after) >= 8
