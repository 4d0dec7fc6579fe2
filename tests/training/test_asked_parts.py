"""What programs ask units, attributes by name, class names and single parameters, before and after.

Each program prints what it learned, and its losses.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

HEAD = """\
import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return torch.tanh(self.linear(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Trainer:
    def __init__(self, parts):
        for name, part in parts.items():
            setattr(self, name, part)


def train(model, note):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(torch.ones(2, 6) * (1 + dist.get_rank())).pow(2).mean()
        loss.backward()
        note(model)
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item(), flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    policy = ModuleWrapPolicy({Block})
    model = FSDP(
        Net(), auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=True
    )
    BEFORE
    train(model, note)
    dist.destroy_process_group()


def note(model):
    NOTE


main()
"""
PROGRAMS = {
    "units": (
        'trainer = Trainer({"model": model})',
        'print("word", [b.process_group.size() for b in model.blocks], '
        "[type(b.module.linear).__name__ for b in model.blocks], flush=True)",
    ),
    "attributes by name": (
        'trainer = Trainer({"model": model, "net": Net()})\n'
        '    found = [n for n in ("model", "net") if isinstance(getattr(trainer, n), Net)]\n'
        '    print("word", found, flush=True)',
        "pass",
    ),
    "a part of a name": (
        'print("word", "ShardedDataParallel" in type(model).__name__, flush=True)',
        "pass",
    ),
    "a function for each parameter": (
        "pass",
        "total = functools.reduce("
        "lambda total, p: total + p.detach().pow(2).sum(), model.parameters(), torch.zeros(()))\n"
        '    dist.all_reduce(total)\n    print("norm", total.item(), flush=True)',
    ),
    "a policy that checkpointing is given as well": (
        "apply_activation_checkpointing(model, auto_wrap_policy=policy)",
        "pass",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_is_learned(launcher: Launcher, tmp_path: Path, name: str) -> None:
    before, note = PROGRAMS[name]
    program = HEAD.replace("BEFORE", before).replace("NOTE", note)
    both = written({"train.py": program.encode()}, tmp_path)
    first = launcher.script(both.before, fsdp1="allow")
    then = launcher.script(both.after, fsdp1="forbid")
    assert compare(first, then, tolerance=1e-5) >= 6
    for one, other in zip(first.output, then.output, strict=True):
        words = [line for line in one.splitlines() if line.startswith("word")]
        assert words == [line for line in other.splitlines() if line.startswith("word")]
    assert first.numbers("norm") == pytest.approx(then.numbers("norm"), rel=1e-5)
