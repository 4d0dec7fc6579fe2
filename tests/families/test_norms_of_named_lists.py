"""Norms of lists of gradients that stand under a name, and lists that are joined."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net, batch, plain):
    model = FSDP(net, use_orig_params=True)
    model(batch).sum().backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    others = [p.grad for p in plain.parameters()]
    STATEMENT
"""
ADDED = "\n    dist.all_reduce(total)"
NORMS = [
    "total = torch.nn.utils.get_total_norm(grads) ** 2",
    "total = torch.stack(torch._foreach_norm(grads)).pow(2).sum()",
    "total = torch.nn.utils.clip_grad.get_total_norm(grads, 2.0).square()",
    "held = grads\n    total = torch.nn.utils.get_total_norm(held) ** 2",
]


def after(statement: str) -> str:
    return rewritten(PROGRAM.replace("STATEMENT", statement))


@pytest.mark.parametrize("statement", NORMS)
def test_this_ranks_norms_are_added_up(statement: str) -> None:
    assert "list(map(own_part, " in after(statement + ADDED)


@pytest.mark.parametrize("statement", NORMS)
def test_a_norm_that_is_the_whole_ones_now_is_marked(statement: str) -> None:
    found = after(statement)
    assert "own_part" not in found
    assert "FSDP1 gave a number of this rank's piece here" in found


def test_joined_gradients_are_this_ranks() -> None:
    found = after("v = torch.hstack([p.grad.view(-1) for p in model.parameters()])")
    assert "own_part(p.grad).view(-1)" in found


@pytest.mark.parametrize(
    "statement",
    [
        *(each.replace("grads", "others") + ADDED for each in NORMS[:3]),
        "total = plain.get_total_norm(grads)",
        "v = torch.hstack([p.grad.view(-1) for p in plain.parameters()])",
        "v = torch.hstack([batch, batch])",
        "total = torch.nn.utils.get_total_norm([batch])",
    ],
)
def test_other_lists_are_left_alone(statement: str) -> None:
    found = after(statement)
    assert "own_part" not in found
    assert "TODO" not in found


MASTERS = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net, batch, plain, offload):
    model = FSDP(net, use_orig_params=True)
    params = [p for p in model.parameters() if p.requires_grad]
    masters = [MASTER for p in params]
    grads = [m.grad for m in masters if m.grad is not None]
    total = torch.stack([g.float().square().sum() for g in grads]).sum()
    dist.all_reduce(total)
"""


@pytest.mark.parametrize(
    "master",
    [
        "p.detach().clone().float()",
        "p.detach().to('cpu').clone() if offload else p.detach().clone().to(torch.float32)",
    ],
)
def test_copies_of_parameters_are_sharded_as_they_are(master: str) -> None:
    found = rewritten(MASTERS.replace("MASTER", master))
    assert "[own_part(g).float().square().sum() for g in grads]" in found


@pytest.mark.parametrize(
    "master", ["plain", "plain if offload else p.detach()", "torch.zeros(3) if offload else plain"]
)
def test_what_is_no_copy_is_left_alone(master: str) -> None:
    assert "own_part" not in rewritten(MASTERS.replace("MASTER", master))
