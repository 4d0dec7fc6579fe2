"""Models in a list, of which ``map`` asks the parameters for an optimizer, a norm or a clip."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
from itertools import chain
from operator import methodcaller

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def total(params):
    found = sum(p.grad.norm() ** 2 for p in params if p.grad is not None)
    dist.all_reduce(found)
    return found.item()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2)), nn.Linear(4, 2)]
    BEFORE
    models = [
        FSDP(net, device_id=torch.device("cpu"), use_orig_params=True) for net in nets
    ]
    AFTER
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    for step in range(3):
        loss = (models[0](inputs) - models[1](inputs)).pow(2).mean()
        loss.backward()
        print("loss", loss.item())
        print("by name", total(chain.from_iterable(map(methodcaller("parameters"), models))))
        print("of a class", total(chain(*map(nn.Module.parameters, models))))
        print("by lambda", total(chain.from_iterable(map(lambda m: m.parameters(), models))))
        print("of lists", total(sum(map(list, map(methodcaller("parameters"), models)), [])))
        params = chain.from_iterable(m.parameters() for m in models)
        norms = [p.grad.norm() for p in params if p.grad is not None]
        squares = torch.stack(norms).pow(2).sum()
        dist.all_reduce(squares)
        print("in a loop", squares.item())
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
"""
BUILT = "params = chain.from_iterable(map(methodcaller('parameters'), {}))"
OPTIMIZER = "optimizer = torch.optim.AdamW({}, lr=0.01)"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (OPTIMIZER.format("chain(*map(nn.Module.parameters, nets))"), ""),
        ("", f"{BUILT.format('models')}; {OPTIMIZER.format('params')}"),
    ],
)
def test_all_of_them_train(launcher: Launcher, tmp_path: Path, before: str, after: str) -> None:
    text = PROGRAM.replace("BEFORE", before).replace("AFTER", after)
    both = written({"train.py": text.encode()}, tmp_path)
    assert "TODO" not in both.text()
    first = launcher.script(both.before, fsdp1="allow")
    second = launcher.script(both.after, fsdp1="forbid")
    assert compare(first, second, tolerance=1e-5) == 36
