"""Values that a program computes of each parameter and hands to other ranks, and loads after a
forward that has no backward."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

START = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def make(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 2, bias=False))
    return FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)

"""
MOVED = """
class Outer:
    def __init__(self, model):
        self.params = list(model.parameters())
        self.old = [p.detach().clone() for p in self.params]

    @torch.no_grad()
    def sync(self, group):
        for p, old in zip(self.params, self.old):
            delta = old - p.data
            dist.all_reduce(delta, group=group)
            p.copy_(old - 0.7 * delta)
            old.copy_(p)


def gradients(model):
    every = model.parameters()
    return [p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in every]


def agree(first, second):
    found = sum((a * b).sum() for a, b in zip(first, second))
    dist.all_reduce(found)
    return found.item()


def norm(gradients):
    flat = torch.cat([g.reshape(-1) for g in gradients if g is not None])
    squares = flat.dot(flat)
    dist.all_reduce(squares)
    return squares.sqrt().item()


dist.init_process_group("gloo")
model = make(0)
outer = Outer(model)
alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
first = None
for step in range(4):
    loss = model(torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    found = gradients(model)
    first = first or found
    optimizer.step()
    if step % 2:
        outer.sync(alone)
    print("loss", loss.item())
    print("agree", agree(first, found))
    print("norm", norm(found))
dist.destroy_process_group()
"""
LOADED = """
def full(model):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        return {k: v.clone() for k, v in model.state_dict().items()}


def restore(model, state):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        model.load_state_dict(state)


def check():
    one, two = make(0), make(1)
    x = torch.ones(2, 4)
    first = one(x)
    second = two(x)
    print("apart", (first - second).abs().sum().item())
    restore(two, full(one))
    third = two(x)
    print("now", (first - third).abs().sum().item())
    for state in (full(one), full(two)):
        restore(one, state)
        print("sum", one(x).sum().item())


dist.init_process_group("gloo")
check()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("program", "numbers"), [(MOVED, 24), (LOADED, 8)], ids=["moved", "loaded"]
)
def test_it_trains_the_same(program: str, numbers: int, launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": (START + program).encode()}, tmp_path)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == numbers
