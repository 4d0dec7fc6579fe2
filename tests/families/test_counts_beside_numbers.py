"""Loops that count elements and compute numbers of them: the share of zeros in gradients."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net, batch, plain):
    model = FSDP(net, use_orig_params=True)
    model(batch).sum().backward()
    total = found = 0
    for p in model.parameters():
        STATEMENT
    print(found / total)
"""
COUNTED = "FSDP1 counted this rank's part here"
NUMBER = "FSDP1 gave a number of this rank's piece"
NUMBERS = [
    "(p.grad == 0).sum().item()",
    "torch.count_nonzero(p.grad).item()",
    "(p.grad.abs() > 1e-8).float().sum().item()",
    "p.grad.norm().item()",
]


def after(statement: str, model: str = "model") -> str:
    source = PROGRAM.replace("in model.", f"in {model}.").replace("STATEMENT", statement)
    return " ".join(rewritten(source).replace("#", " ").split())


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("counted", ["p.numel()", "p.grad.numel()"])
def test_both_are_told(number: str, counted: str) -> None:
    found = after(f"total += {counted}; found += {number}")
    assert COUNTED in found
    assert NUMBER in found


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_alone_is_told_at_its_loop(number: str) -> None:
    found = after(f"found += {number}")
    assert COUNTED not in found
    assert found.index(NUMBER) < found.index("for p in model.parameters()")


def test_a_count_alone_is_told_at_its_loop() -> None:
    found = after("total += p.numel()")
    assert NUMBER not in found
    assert found.index(COUNTED) < found.index("for p in model.parameters()")


@pytest.mark.parametrize("number", NUMBERS)
def test_a_plain_model_is_not_touched(number: str) -> None:
    found = after(f"total += p.numel(); found += {number}", "plain")
    assert "TODO" not in found
