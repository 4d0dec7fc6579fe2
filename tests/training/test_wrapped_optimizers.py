"""Optimizers of a program's own around torch's, which reduce gradients themselves."""

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
from clipping import Clipped


def groups(model):
    return ({"params": list(model.parameters()), "lr": 0.05},)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 2, bias=False))
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    optimizer = Clipped(torch.optim.SGD(groups(model)), replicas=alone)
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    for step in range(4):
        loss = model(inputs).pow(2).mean()
        loss.backward()
        print("norm", optimizer.step().item())
        print("loss", loss.item())
    dist.destroy_process_group()


main()
"""
WRAPPER = """\
from torch.optim import Optimizer


class Wrapper(Optimizer):
    def __init__(self, optim):
        self.optim = optim

    @property
    def param_groups(self):
        return self.optim.param_groups
"""
CLIPPING = """\
from norms import norm, reduce
from wrapper import Wrapper


class Clipped(Wrapper):
    def __init__(self, optimizer, replicas):
        super().__init__(optim=optimizer)
        self.replicas = replicas
        self.held = {}
        for i, group in enumerate(self.optim.param_groups):
            self.held[i] = group["params"]

    def step(self):
        for i in range(len(self.param_groups)):
            for p in self.held[i]:
                if p.grad is not None:
                    reduce(tensor=p.grad, group=self.replicas)
        params = [p for p in self.held[0] if p.grad is not None]
        total = norm([p.grad for p in params])
        for p in params:
            p.grad.mul_(0.1 / (total + 1e-6))
        self.optim.step()
        self.optim.zero_grad()
        return total
"""
NORMS = """\
import torch
import torch.distributed as dist


def reduce(tensor, group):
    dist.all_reduce(tensor=tensor, group=group)


def powers(grads, order):
    total = torch.zeros(())
    for grad in grads:
        total = total + torch.norm(grad, order) ** order
    return total


def norm(grads):
    total = powers([g.data.float() for g in grads], 2)
    dist.all_reduce(total)
    return total.sqrt()
"""


def test_gradients_are_reduced_and_measured_as_before(launcher: Launcher, tmp_path: Path) -> None:
    files = {"train": PROGRAM, "wrapper": WRAPPER, "clipping": CLIPPING, "norms": NORMS}
    both = written({f"{name}.py": text.encode() for name, text in files.items()}, tmp_path)
    assert "all_reduce(tensor=own_part(tensor)" in both.text("norms.py")
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 16
