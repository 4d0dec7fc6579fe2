"""A load after a forward that no backward follows reshards first, whatever else has one."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

SOURCE = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Kept:
    pass


def run(state, loader, criterion, engine):
    model = FSDP(nn.Linear(8, 8), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    {forward}
    model.load_state_dict(state)
    for x in loader:
        loss = criterion(model(x))
        loss.backward()
        optimizer.step()
"""


def reshards(*lines: str) -> bool:
    return "    model.reshard()\n" in rewritten(SOURCE.format(forward="\n    ".join(lines)))


@pytest.mark.parametrize(
    "lines",
    [
        ("out = model(torch.ones(2, 8))", "print(out.shape)"),
        ("out = model(torch.ones(2, 8))", "assert out.isfinite().all()"),
        ("loss = model(torch.ones(2, 8)).sum()", "print(loss)"),
        ("out = model(torch.ones(2, 8))", "value = out.sum().item()", "losses.append(value)"),
        ("model(torch.ones(2, 8))",),
    ],
)
def test_a_forward_without_a_backward(lines: tuple[str, ...]) -> None:
    assert reshards(*lines)


@pytest.mark.parametrize(
    "lines",
    [
        ("out = model(torch.ones(2, 8))", "loss = criterion(out)", "loss.backward()"),
        ("out = model(torch.ones(2, 8))", "engine.finish(out)"),
        ("out = model(torch.ones(2, 8))", "losses.append(out)", "sum(losses).backward()"),
        ("out = model(torch.ones(2, 8))", "for each in out:", "    each.backward()"),
        ("out = model(torch.ones(2, 8))", "Kept.out = out"),
        ("pass",),
    ],
)
def test_a_forward_that_may_have_one(lines: tuple[str, ...]) -> None:
    assert not reshards(*lines)
