"""Parts of a model whose ``forward`` is called train as they did."""

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
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return self.inner.forward(x).relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8, 6)
        self.first = Block()
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(6, 1)

    def forward(self, ids, vectors=None):
        x = self.embed(ids) if vectors is None else vectors
        x = self.first.forward(x)
        for block in self.blocks:
            x = x + block.forward(x)
        return self.head(x)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FSDP(
        Net(),
        auto_wrap_policy=ModuleWrapPolicy({Block, nn.Embedding}),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.arange(4) + dist.get_rank()
    with torch.no_grad():
        print("before", model(ids).sum().item())
    for step in range(4):
        vectors = model.module.embed.forward(ids)
        loss = (model(None, vectors + 0.1) - 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


main()
"""


def test_parts_train_as_before(launcher: Launcher, tmp_path: Path) -> None:
    program = written({"train.py": PROGRAM.encode()}, tmp_path)
    runs = [launcher.script(each) for each in (program.before, program.after)]
    assert compare(*runs) == 10
