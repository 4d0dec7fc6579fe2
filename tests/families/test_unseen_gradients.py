"""Gradients under ``summon_full_params`` that are not gathered there."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

SOURCE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def norms(model):
    return [p.grad.norm() for p in model.parameters()]


class Watch:
    def look(self, model):
        return norms(model)


def main(net, batch, optimizer):
    model = FSDP(net, use_orig_params=True)
    model(batch).sum().backward()
    image = torch.ones(4, requires_grad=True)
    with FSDP.summon_full_params(model{given}):
        {block}
"""


def outcome(block: str, given: str = "") -> str:
    result, _ = migrate({"train.py": SOURCE.format(block=block, given=given)})
    return next(d.outcome.value for d in result.decisions if d.code == "FSDP306")


@pytest.mark.parametrize(
    "block",
    [
        "print([p.grad for p in model.parameters()], sum(p.sum() for p in model.parameters()))",
        "print(model.module.weight.grad)",
        "norms(model)",
        "Watch().look(model)",
        "model.zero_grad()",
        "model.module.weight.grad = None",
    ],
)
@pytest.mark.parametrize("given", ["", ", with_grads=False", ", writeback=False"])
def test_gradients_that_are_not_gathered_are_told(block: str, given: str) -> None:
    assert outcome(block, given) == "review"


@pytest.mark.parametrize(
    ("block", "given"),
    [
        ("print(model.module.weight.grad)", ", with_grads=True"),
        ("norms(model)", ", with_grads=True"),
        ("print(image.grad, model.module.weight)", ""),
        ("print(torch.autograd.grad(image.sum(), image), model.module.weight)", ""),
        ("print(len(str(model.module.weight)))", ""),
        ("optimizer.zero_grad(), model.module.weight.sum()", ""),
    ],
)
def test_other_blocks_are_not(block: str, given: str) -> None:
    assert outcome(block, given) == "rewritten"
