"""A sharded model or an object of the project's own: group, state, clip and gradients of either."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class OneDevice(nn.Module):
    process_group = None

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)

    def state_dict(self):
        return self.net.state_dict()

    def clip_grad_norm_(self, limit):
        for p in self.parameters():
            p.grad.clamp_(-limit, limit)
        return torch.tensor(limit)


def build(kind):
    net = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
    if kind == "sharded":
        return FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    return OneDevice(net)


def norm(model):
    total = torch.zeros(())
    for p in model.parameters():
        tensors = [p.grad]
        for grad in tensors:
            if grad is not None:
                total += grad.square().sum()
    dist.all_reduce(total, group=model.process_group)
    return total.sqrt()


def main(kind):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = build(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    for step in range(3):
        loss = model(torch.randn(4, 6)).square().mean()
        loss.backward()
        print("norm", norm(model).item())
        print("clipped", float(model.clip_grad_norm_(0.05)))
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    state = model.state_dict()
    if dist.get_rank() == 0:
        print("state", len(state), sum(v.double().sum() for v in state.values()).item())
    dist.destroy_process_group()


main(*sys.argv[1:])
"""


@pytest.mark.parametrize("kind", ["sharded", "whole"])
def test_trains_the_same(kind: str, launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    text = both.after.read_text()
    assert "if isinstance(model, FSDPModule)" in text
    assert "else model.clip_grad_norm_(0.05)" in text
    before = launcher.script(both.before, kind)
    after = launcher.script(both.after, kind, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) >= 19
