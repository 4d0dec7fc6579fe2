"""Functions that are called for each parameter or gradient, and numbers of theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import functools
import itertools
import operator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

size = torch.linalg.vector_norm


def square(p):
    flat = p.detach()
    return flat.float().pow(2).sum()


def product(a, b):
    return torch.sum(a * b)


class Meter:
    def part(self, p):
        return p.norm() ** 2

    def total(self, tensors):
        return sum(self.part(t) for t in tensors)


def shown(name, total):
    dist.all_reduce(total)
    print(name, total.item())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.Linear(5, 4)), nn.Linear(4, 1))
    policy = ModuleWrapPolicy({nn.Sequential})
    model = FSDP(
        net, auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=True
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    for step in range(2):
        loss = model(inputs).pow(2).mean()
        loss.backward()
        grads = [g for g in map(operator.attrgetter("grad"), model.parameters()) if g is not None]
        shown("of torch", torch.stack(list(map(torch.norm, grads))).pow(2).sum())
        norms = map(functools.partial(torch.norm, p=2), grads)
        shown("of a partial", torch.stack(list(norms)).pow(2).sum())
        shown("by a name", sum(size(g) ** 2 for g in grads))
        shown("of a method", Meter().total(grads))
        shown("by a method's name", sum(n ** 2 for n in map(operator.methodcaller("norm"), grads)))
        given = (p.grad for p in model.parameters() if p.grad is not None)
        shown("of a generator", torch.stack(list(map(torch.norm, given))).pow(2).sum())
        pairs = itertools.starmap(lambda a, b: (a * b).sum(), zip(grads, grads))
        shown("of pairs", sum(pairs))
        shown("of two lists", sum(map(product, grads, grads)))
        given = (p.grad for p in model.parameters() if p.grad is not None)
        shown("of squares", sum(map(torch.sum, map(torch.square, given))))
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(inputs)
        shown("of a function", sum(square(p) for p in model.parameters()))
        with torch.no_grad():
            model(inputs)
        shown("by map", sum(map(square, model.parameters())))
        with torch.no_grad():
            model(inputs)
        shown("of torch", torch.stack(list(map(torch.norm, model.parameters()))).pow(2).sum())
    dist.destroy_process_group()


main()
"""


def test_their_numbers_add_up(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    assert "TODO" not in both.text()
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 48
