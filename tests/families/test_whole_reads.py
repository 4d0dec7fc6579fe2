"""Loops under ``summon_full_params`` that gather what they read where they read it."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

SOURCE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def read(net, rank, mine):
    model = FSDP(net)
    with FSDP.summon_full_params(model, writeback=False, with_grads={gradients}):
        {body}
"""
NAMED = "for n, p in model.named_parameters():\n            "


def emitted(body: str, *, gradients: bool) -> str:
    return rewritten(SOURCE.format(body=body, gradients=gradients))


SHARED = (
    (NAMED + "if p.ndim > 1:\n                print(p.norm())", "print(p.full_tensor().norm())"),
    (
        NAMED + "if 'head' in n or not p.requires_grad:\n                continue\n"
        "            print(p.norm())",
        "print(p.full_tensor().norm())",
    ),
    (
        "return sum(p.norm() for n, p in model.named_parameters() if 'head' in n)",
        "sum(p.full_tensor().norm() for n, p in",
    ),
)


@pytest.mark.parametrize(("body", "expected"), SHARED)
def test_conditions_on_the_loops_own_variables_are_shared(body: str, expected: str) -> None:
    assert expected in emitted(body, gradients=False)


GRADIENTS = (
    (
        NAMED + "if p.grad is not None:\n                print(p.grad.norm())",
        ".grad.full_tensor().",
    ),
    (
        NAMED + "if p.grad is None:\n                continue\n"
        "            print(n, p.norm(), torch.norm(p.grad))",
        "print(n, p.full_tensor().norm(), torch.norm(p.grad.full_tensor()))",
    ),
    (
        "return [p.grad.data.norm() for p in model.parameters() if p.grad is not None]",
        "[p.grad.full_tensor().data.norm() for p in",
    ),
)


@pytest.mark.parametrize(("body", "expected"), GRADIENTS)
def test_gradients_are_gathered_where_they_are_read(body: str, expected: str) -> None:
    text = emitted(body, gradients=True)
    assert expected in text
    assert "full_params" not in text


ELSEWHERE = (
    (NAMED + "if rank == 0:\n                print(p.grad.norm())", True),
    (NAMED + "if n in mine:\n                print(p.grad.norm())", True),
    (NAMED + "n = mine[n]\n            if n:\n                print(p.grad.norm())", True),
    (NAMED + "if torch.cuda.is_available():\n                print(p.grad.norm())", True),
    (NAMED + "if p.device.index == 0:\n                print(p.grad.norm())", True),
    (NAMED + "if rank:\n                continue\n            print(p.grad.norm())", True),
    (NAMED + "mine[n] = p.grad", True),
    (NAMED + "mine[n] = p.grad.norm() if mine else p.grad.max()", True),
    (NAMED + "p.grad.mul_(2)", True),
    (NAMED + "p.grad = None", True),
    (NAMED + "print(p.grad.norm())", False),
    ("return [p.grad.norm() for n, p in model.named_parameters() if n in mine]", True),
    ("return [p.norm() for n, p in model.named_parameters() if n in mine]", False),
    ("return [mine and p.grad.norm() for p in model.parameters()]", True),
)


OTHER_READS = (
    NAMED + "print(p.norm() / model.module.head.weight.norm())",
    NAMED + "print(p.norm(), measure(model))",
    "return sum(p.norm() for p in model.parameters()) + model.head.bias.norm()",
    "return [p.norm() for p in model.parameters()] + [net.head.weight.norm()]",
    "print(largest(model), sum(p.norm() for p in model.parameters()))",
)


@pytest.mark.parametrize("body", OTHER_READS)
def test_what_is_read_beside_the_loop_keeps_the_context(body: str) -> None:
    text = emitted(body, gradients=False)
    assert "with full_params(model, writeback=False" in text
    assert ".full_tensor()" not in text.partition("with full_params")[2]


@pytest.mark.parametrize("written", ["p.data.mul_(0.5)", "p.mul_(2)"])
def test_what_is_read_beside_changes_keeps_the_context(written: str) -> None:
    body = NAMED + f"{written}\n            print(model.head.weight.norm())"
    text = rewritten(SOURCE.format(body=body, gradients=False).replace("writeback=False, ", ""))
    assert "with full_params(model" in text


@pytest.mark.parametrize(("body", "gradients"), ELSEWHERE)
def test_what_ranks_may_not_do_alike_keeps_the_context(body: str, *, gradients: bool) -> None:
    text = emitted(body, gradients=gradients)
    assert "with full_params(model, writeback=False" in text
    assert ".full_tensor()" not in text


ONLY_USED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def norm(model):
    with FSDP.summon_full_params(model, writeback=False):
        return sum(p.norm() for p in model.parameters())


def train(net, x, helper):
    model = FSDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(9):
        with torch.no_grad():
            model(x)
        loss = model(x).sum()
        loss.backward()
        {use}
"""


@pytest.mark.parametrize(
    "use", ["print(norm(model))", "total = norm(model)", "optimizer.step()\n        norm(model)"]
)
def test_what_is_called_right_after_a_backward_is_sharded(use: str) -> None:
    assert "reshard" not in rewritten(ONLY_USED.format(use=use))


@pytest.mark.parametrize(
    "use",
    [
        "print(helper.score(model), norm(model))",
        "model(x)\n        norm(model)",
        "norm(model)\n        helper(norm)",
        "norm(model)\n    norm(model)",
        "loss = helper(x)\n        loss.backward()\n        norm(model)",
        "if helper:\n            model(x)\n        norm(model)",
        "for _ in x:\n            norm(model)\n            model(x)",
    ],
)
def test_other_calls_are_not(use: str) -> None:
    assert "reshard" in rewritten(ONLY_USED.format(use=use))
