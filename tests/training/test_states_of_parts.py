"""Parts of a sharded model are saved whole and loaded, by themselves and by methods."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(5, 5)

    def forward(self, x):
        return self.lin(x).relu()

    def keep(self, path):
        state = self.state_dict()
        if dist.get_rank() == 0:
            torch.save(state, path)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.encoder(x))

    def save(self, path):
        state = {"model": self.state_dict()}
        if not dist.is_initialized() or dist.get_rank() == 0:
            torch.save(state, path)


def show(path):
    dist.barrier()
    found = torch.load(path)
    for name, value in found.get("model", found).items():
        print(name, list(value.shape), value.double().sum().item(), value.double().norm().item())


def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        loss = model(torch.randn(4, 5)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())


def main():
    torch.manual_seed(0)
    Net().save("plain.pt")
    dist.init_process_group("gloo")
    policy = ModuleWrapPolicy({nn.Linear})
    model = FSDP(Net(), auto_wrap_policy=policy, device_id=torch.device("cpu"))
    torch.manual_seed(dist.get_rank())
    train(model, 2)
    first = model.encoder.state_dict()
    if dist.get_rank() == 0:
        torch.save(first, "encoder.pt")
    show("encoder.pt")
    model.encoder.keep("kept.pt")
    show("kept.pt")
    model.save("net.pt")
    show("net.pt")
    show("plain.pt")
    train(model, 2)
    model.encoder.load_state_dict(torch.load("encoder.pt"))
    train(model, 2)
    dist.barrier()
    dist.destroy_process_group()


main()
"""


def test_parts_are_saved_whole_and_loaded(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    text = both.text()
    assert text.count("get_model_state_dict(") == 3
    assert text.count("set_model_state_dict(") == 1
    assert compare(launcher.script(both.before), launcher.script(both.after)) == 60
