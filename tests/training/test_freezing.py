"""Blocks that are frozen for an epoch, between evaluations, train again afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 6)

    def forward(self, x):
        return x + self.lin(x).relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.blocks(x))

    def freeze_blocks(self):
        for p in self.blocks.parameters():
            p.requires_grad = False

    def unfreeze_all(self):
        for p in self.parameters():
            p.requires_grad = True


@torch.no_grad()
def evaluate(model):
    model.eval()
    model(torch.ones(2, 6))
    model.train()


def train_one_epoch(model, optimizer, epoch):
    if epoch < 1:
        model.module.freeze_blocks()
    else:
        model.module.unfreeze_all()
    for step in range(3):
        loss = model(torch.randn(4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item(), flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FSDP(
        Net(),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        sharding_strategy=ShardingStrategy.STRATEGY,
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    first = 0
    if sys.argv[2:] == ["resume"]:
        state = torch.load(sys.argv[1], weights_only=False)
        model.load_state_dict(state["model"])
        held = FSDP.optim_state_dict_to_load(model, optimizer, state["optimizer"])
        optimizer.load_state_dict(held)
        first = 1
    for epoch in range(first, 3):
        train_one_epoch(model, optimizer, epoch)
        if epoch == 0:
            held = FSDP.optim_state_dict(model, optimizer)
            state = {"model": model.state_dict(), "optimizer": held}
            if dist.get_rank() == 0:
                torch.save(state, sys.argv[1])
        evaluate(model)
    dist.destroy_process_group()


main()
"""


def test_they_train_again(launcher: Launcher, tmp_path: Path) -> None:
    path = str(tmp_path / "state.pt")
    program = PROGRAM.replace("STRATEGY", "SHARD_GRAD_OP")
    both = written({"train.py": program.encode()}, tmp_path)
    before = launcher.script(both.before, path, fsdp1="allow")
    after = launcher.script(both.after, path, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 18
    text = both.text()
    both.after.write_text(text.replace("reshard_parameters(model)\n        model.", "model."))
    naive = launcher.script(both.after, path, fsdp1="forbid")
    assert before.numbers("loss") != pytest.approx(naive.numbers("loss"), rel=1e-3)


def test_a_file_from_the_frozen_epoch_is_resumed(launcher: Launcher, tmp_path: Path) -> None:
    path = str(tmp_path / "state.pt")
    both = written({"train.py": PROGRAM.replace("STRATEGY", "FULL_SHARD").encode()}, tmp_path)
    launcher.script(both.before, path, fsdp1="allow")
    before = launcher.script(both.before, path, "resume", fsdp1="allow")
    after = launcher.script(both.after, path, "resume", fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 12
