"""A state that a new optimizer loads while there are gradients of an earlier step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, written

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

CONFIG = FullStateDictConfig(rank0_only=False)


def save(model, optimizer):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, CONFIG):
        return FSDP.optim_state_dict(model, optimizer)


def restore(model, optimizer, state):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, CONFIG):
        sharded = FSDP.optim_state_dict_to_load(model, optimizer, state)
        optimizer.load_state_dict(sharded)


def train(model, optimizer):
    for _ in range(2):
        FIRST
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        LAST
        print("loss", loss.item())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FSDP(nn.Linear(4, 4), use_orig_params=True, device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer)
    state = save(model, optimizer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    restore(model, optimizer, state)
    train(model, optimizer)
    dist.destroy_process_group()


main()
"""
DROPPED = "optimizer.zero_grad()"


@pytest.mark.parametrize(
    ("first", "last", "form"),
    [
        (DROPPED, "pass", "optimizer.load_state_dict(optimizer_state_to_load("),
        ("pass", DROPPED, "set_optimizer_state_dict("),
    ],
)
def test_the_optimizer_goes_on(
    first: str, last: str, form: str, launcher: Launcher, tmp_path: Path
) -> None:
    source = PROGRAM.replace("FIRST", first).replace("LAST", last)
    both = written({"train.py": source.encode()}, tmp_path)
    assert form in both.text()
    before = launcher.script(both.before, fsdp1="allow").numbers("loss")
    assert len(before) == 4
    assert launcher.script(both.after, fsdp1="forbid").numbers("loss") == pytest.approx(before)
