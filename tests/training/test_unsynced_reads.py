"""Gradients that are read while they wait for their reduction."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def count(model):
    return sum(p.grad is not None for p in model.parameters())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    for index in range(6):
        is_last = index % 3 == 2
        with nullcontext() if is_last else model.no_sync():
            loss = model(inputs + index).pow(2).mean()
            loss.backward()
            WITHIN
        BETWEEN
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


main()
"""
SKIPPING = "if not is_last: print('loss', loss.item()); continue"
SCALED = "[p.grad.mul_(0.5) for p in model.parameters() if p.grad is not None]"


@pytest.mark.parametrize(
    ("within", "between", "is_marked"),
    [
        ("print('seen', float(count(model)))", "", True),
        ("", SCALED, True),
        ("", f"{SKIPPING}\n        print('seen', float(count(model) > 0))", False),
    ],
)
def test_what_is_not_there_yet_is_marked(
    launcher: Launcher, tmp_path: Path, within: str, between: str, is_marked: bool
) -> None:
    text = PROGRAM.replace("WITHIN", within).replace("BETWEEN", between)
    both = written({"train.py": text.encode()}, tmp_path)
    assert ("are not in p.grad" in both.text()) == is_marked
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert ("TODO" in both.text()) == is_marked
    if is_marked:
        assert before.output != after.output
    else:
        assert compare(before, after, tolerance=1e-5) == 16
