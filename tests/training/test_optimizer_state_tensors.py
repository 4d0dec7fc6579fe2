"""Elements and bytes of an optimizer's state, which its programs count on each rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

SIZES = """\
import torch

KEYS = ("exp_avg", "exp_avg_sq")


def bytes_of(optimizer):
    total = 0
    for state in optimizer.state.values():
        for name, value in state.items():
            if name in KEYS:
                total += value.numel() * value.element_size()
    return total


def moments(optimizer):
    for state in optimizer.state.values():
        yield state["exp_avg"]
        yield state["exp_avg_sq"]


def count(saved):
    return sum(s[key].numel() for s in saved["state"].values() for key in KEYS if key in s)


def size(tensor):
    return tensor.nbytes


class Meter:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def stored(self):
        total = 0
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                held = self.optimizer.state[p].get("exp_avg")
                if held is not None:
                    total += held.untyped_storage().nbytes()
        return total
"""
PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from sizes import Meter, bytes_of, count, moments, size


def over_ranks(number):
    total = torch.tensor(float(number))
    dist.all_reduce(total)
    return total.item()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        loss = model(torch.arange(8.0).view(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        print("loss", loss.item())
    states = optimizer.state.values()
    print("here", float(sum(s["exp_avg"].nbytes for s in states if "exp_avg" in s)))
    print("bytes", float(bytes_of(optimizer)))
    print("of each", float(sum(size(t) for t in moments(optimizer))))
    print("by map", float(sum(map(torch.numel, moments(optimizer)))))
    print("of the dictionary", float(count(optimizer.state_dict())))
    print("stored", over_ranks(Meter(optimizer).stored() > 0))
    print("all", over_ranks(bytes_of(optimizer)))
    squares = torch.zeros(())
    for p in model.parameters():
        if "exp_avg" in optimizer.state[p]:
            squares += optimizer.state[p]["exp_avg"].norm() ** 2
    dist.all_reduce(squares)
    print("norm", squares.sqrt().item())
    for state in optimizer.state.values():
        if "exp_avg" in state:
            state["exp_avg"].data = state["exp_avg"] * 0.5
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    print("loss", model(torch.ones(2, 4)).square().mean().item())
    dist.destroy_process_group()


main()
"""


def test_each_rank_counts_its_own_part(launcher: Launcher, tmp_path: Path) -> None:
    files = {"train.py": PROGRAM.encode(), "sizes.py": SIZES.encode()}
    both = written(files, tmp_path)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    compare(before, after)
    assert after.numbers("here") == [80.0]
    assert after.numbers("bytes") == [160.0]
    assert after.numbers("all") == [320.0]
