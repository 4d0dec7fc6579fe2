"""An average, a copy of the model that the same function shards: a method of it runs its units."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
from copy import deepcopy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.layer(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x):
        return self.second(self.first(x))

    @torch.no_grad()
    def look(self, x):
        return self.second(self.first(x)) - x


def wrap(net):
    policy = ModuleWrapPolicy({Block})
    return FSDP(net, auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net()
    average = wrap(deepcopy(net))
    model = wrap(net)
    other = {other}
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.5)
    torch.manual_seed(dist.get_rank())
    with torch.no_grad():
        average(torch.randn(6, 8))  # FSDP1's units belong to the root from here on
    for _ in range(4):
        x = torch.randn(6, 8)
        optimizer.zero_grad()
        found = (model(x) - average.look(x) + other(x)).square().mean()
        found.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, new in zip(average.parameters(), model.parameters()):
                mean.lerp_(new, 0.1)
        print("loss", found.item())
    dist.destroy_process_group()


main()
"""


OTHERS = {
    "one of its own class": ("wrap(Net())", False),
    "one without the method": ("wrap(nn.Sequential(Block(), Block()))", True),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_method_of_the_average_computes_as_before(
    name: str, launcher: Launcher, tmp_path: Path
) -> None:
    other, is_asked = OTHERS[name]
    both = written({"train.py": PROGRAM.replace("{other}", other).encode()}, tmp_path)
    text = both.after.read_text()
    assert 'register_fsdp_forward_method(net, "look")' in text
    assert ('if hasattr(net, "look"):' in text) is is_asked
    before = launcher.script(both.before)
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) >= 4
