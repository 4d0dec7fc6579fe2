"""States of a model that an earlier call sharded, under a flag that each call sets for itself."""

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


class Run:
    def __init__(self, model):
        self.model = model

    def epoch(self, number):
        first = number == 0
        if first:
            self.model = FSDP(self.model, device_id=torch.device("cpu"))
        self.model(torch.ones(2, 6)).sum().backward()
        if not first:
            state = self.model.state_dict()
            for name, value in state.items():
                print(name, tuple(value.shape), float(value.double().sum()))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    run = Run(nn.Linear(6, 4))
    for number in range(2):
        run.epoch(number)
    dist.destroy_process_group()


main()
"""


def test_the_states_are_whole(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after) == 4  # two sums on each of two ranks, beside the shapes
