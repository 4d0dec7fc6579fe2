"""Context managers of the project's own around states that are saved and loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


@contextmanager
def whole_on_first(model):
    config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        yield


def whole(model):
    return FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT)


def train(model, optimizer):
    for step in range(3):
        loss = model(torch.randn(4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item(), flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    model = FSDP(net, device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    train(model, optimizer)
    with whole_on_first(model):
        state = model.state_dict()
        print(sorted(state), flush=True)
    for name in sorted(state):
        print("loss", state[name].double().abs().sum().item(), flush=True)
    with whole(model):
        kept = {name: value.clone() for name, value in model.state_dict().items()}
    train(model, optimizer)
    with whole(model):
        model.load_state_dict(kept)
    train(model, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""


def test_states_are_the_same(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    assert "whole(" not in both.text()
    assert "with " not in both.text()
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after) == 9 * 2 + 4 + 4  # the names have numbers as well
    keys = [[n for n in run.output[0].splitlines() if n.startswith("[")] for run in (before, after)]
    assert keys[0] == keys[1]


TOLD = PROGRAM.replace(
    """@contextmanager
def whole_on_first(model):
    config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        yield


def whole(model):
    return FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT)
""",
    """@contextmanager
def states(model, kind=StateDictType.FULL_STATE_DICT, first=False):
    config = FullStateDictConfig(offload_to_cpu=first, rank0_only=first)
    with FSDP.state_dict_type(model, kind, config):
        yield
""",
).replace("whole_on_first(model)", "states(model, first=True)")
TOLD = TOLD.replace("whole(model)", "states(model, StateDictType.FULL_STATE_DICT)")


def test_states_of_a_manager_that_is_told_the_kind_are_the_same(
    launcher: Launcher, tmp_path: Path
) -> None:
    both = written({"train.py": TOLD.encode()}, tmp_path)
    assert "states(" not in both.text()
    assert "with " not in both.text()
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after) == 9 * 2 + 4 + 4
    keys = [[n for n in run.output[0].splitlines() if n.startswith("[")] for run in (before, after)]
    assert keys[0] == keys[1]
