"""Elements of parameters that programs count and add up over the ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import functools
import operator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Meter:
    def size(self, p):
        return p.detach().numel()

    def all(self, params):
        return sum(map(self.size, params))


def size(p):
    return torch.numel(p)


def sizes(params):
    return [p.data.shape.numel() for p in params]


def shown(name, number):
    total = torch.tensor(float(number))
    dist.all_reduce(total)
    print(name, total.item())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    plain = sum(map(torch.numel, net.parameters()))
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    params = list(model.parameters())
    print("of the whole", float(plain))
    shown("of torch", sum(map(torch.numel, model.parameters())))
    shown("of a class", sum(map(torch.Tensor.numel, params)))
    shown("by a method's name", sum(map(operator.methodcaller("nelement"), params)))
    shown("in a loop", sum(torch.numel(p) for p in params))
    shown("reduced", functools.reduce(lambda n, p: n + p.numel(), model.parameters(), 0))
    shown("of a function", sum(size(p) for p in params))
    shown("by map", sum(map(size, params)))
    shown("of a method", Meter().all(params))
    shown("of shapes", sum(sizes(params)))
    groups = [{"params": []}, {"params": []}]
    for p in params:
        groups[p.ndim > 1]["params"].append(p)
    shown("of groups", sum(p.numel() for g in groups for p in g["params"]))
    kept = {}
    for name, child in model.named_modules():
        if isinstance(child, nn.Linear):
            kept[name] = child.weight
    shown("of parts", sum(p.numel() for p in kept.values()))
    shown("of one", size(model[0].weight) + size(model[1].weight))
    dist.destroy_process_group()


main()
"""


def test_they_add_up(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after) == 26
    assert set(after.numbers("")) == {35.0, 43.0}
