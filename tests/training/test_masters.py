"""Copies of parameters that an optimizer of the program's own steps, and the norm of their
gradients."""

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


class Masters:
    def __init__(self, model, offload):
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.masters = [
            p.detach().to("cpu", torch.float64).clone() if offload else p.detach().clone().double()
            for p in self.params
        ]
        self.optimizer = torch.optim.AdamW(self.masters, lr=0.05)

    def clip(self):
        grads = [m.grad for m in self.masters if m.grad is not None]
        total = torch.stack([g.float().square().sum() for g in grads]).sum()
        dist.all_reduce(total)
        print("norm", total.sqrt().item())
        for grad in grads:
            grad.mul_(torch.clamp(0.1 / (total.sqrt() + 1e-6), max=1.0))

    @torch.no_grad()
    def step(self):
        for p, m in zip(self.params, self.masters):
            m.grad = None if p.grad is None else p.grad.to(m.dtype)
            p.grad = None
        self.clip()
        self.optimizer.step()
        for p, m in zip(self.params, self.masters):
            p.data.copy_(m.data.to(p.dtype))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 2, bias=False))
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = Masters(model, False)
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    for step in range(4):
        loss = model(inputs).pow(2).mean()
        loss.backward()
        optimizer.step()
        print("loss", loss.item())
    dist.destroy_process_group()


main()
"""


def test_the_norm_of_masters_is_of_all_ranks(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    assert "own_part(g)" in both.text("train.py")
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 16
