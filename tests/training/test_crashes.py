"""Programs whose migrated form would end with an error if one reference were overlooked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def sharded(model):
    return FSDP(model, device_id=torch.device("cpu"), use_orig_params=True)


"""

TAIL = """\


dist.init_process_group("gloo")
torch.manual_seed(0)
main()
dist.destroy_process_group()
"""

PROGRAMS = {
    "a state that is deleted after it was loaded": """\
def load(model, optimizer, state):
    saved = state if dist.get_rank() == 0 else None
    parts = FSDP.scatter_full_optim_state_dict(saved, model)
    optimizer.load_state_dict(parts)
    del saved, parts


def main():
    model = sharded(nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state = FSDP.full_optim_state_dict(model, optimizer)
        load(model, optimizer, state)
        print("loss", loss.item())
""",
    "parts that are asked one by one": """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(sharded(nn.Linear(4, 4)) for _ in range(2))
        self.heads = nn.ModuleDict({name: sharded(nn.Linear(4, 1)) for name in "ab"})

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return sum(head(x) for head in self.heads.values())


def main():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        for index, layer in enumerate(model.layers):
            print("norm", index, layer.clip_grad_norm_(0.1).item())
        for head in model.heads.values():
            head.clip_grad_norm_(0.1)
        print("head", model.heads["a"].clip_grad_norm_(0.1).item())
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_trains_the_same(name: str, launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": (HEAD + PROGRAMS[name] + TAIL).encode()}, tmp_path)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after) >= 3
