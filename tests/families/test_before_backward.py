"""Where a backward is yet to come, through the functions that a program calls."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

SOURCE = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def forward(model, x):
    return model(x).square().mean()


def weight(model):
    total = sum(p.detach().square().sum() for p in model.parameters())
    dist.all_reduce(total)
    return total


def main(batches):
    model = FSDP(nn.Linear(4, 4), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        {step}
        optimizer.step()
"""


@pytest.mark.parametrize(
    "step",
    [
        "loss = forward(model, x)\n        weight(model)\n        loss.backward()",
        "loss = forward(model, x) + 0 * weight(model)\n        loss.backward()",
        "loss = model(x).sum()\n        print(weight(model))\n        loss.backward()",
    ],
)
def test_a_backward_is_yet_to_come(step: str) -> None:
    assert "model.reshard()\n" in rewritten(SOURCE.format(step=step))


@pytest.mark.parametrize(
    "step",
    [
        "loss = forward(model, x)\n        loss.backward()\n        weight(model)",
        "weight(model)\n        loss = forward(model, x)\n        loss.backward()",
        "forward(model, x).backward()\n        print(weight(model))",
    ],
)
def test_none_is(step: str) -> None:
    assert "reshard" not in rewritten(SOURCE.format(step=step))
