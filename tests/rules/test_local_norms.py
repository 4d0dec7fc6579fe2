"""Ways in which a norm of shards is computed (FSDP901), and what is none."""

from __future__ import annotations

import pytest

from tests.helpers.hazards import codes

PROGRAM = """\
import torch
from torch.distributed.fsdp import fully_shard


def train(model, batch, log):
    fully_shard(model)
    model(batch).sum().backward()
    BODY
"""
FOUND = {
    "a sum of a generator": (
        "return sum(p.grad.to_local().norm() ** 2 for p in model.parameters()) ** 0.5"
    ),
    "squares that have a name": (
        "total = 0\n    for p in model.parameters():\n        g = p.grad.to_local()\n"
        "        square = (g.float() ** 2).sum()\n        total = total + square"
    ),
    "a gradient that is called local": (
        "total = 0\n    for p in model.parameters():\n        local_grad = p.grad.to_local()\n"
        "        total += local_grad.norm() ** 2"
    ),
    "a list of gradients": (
        "grads = []\n    for n, p in model.named_parameters():\n"
        "        grads.append(p.grad._local_tensor.detach())\n"
        "    log(torch.nn.utils.get_total_norm(grads))"
    ),
    "a stack": (
        "norms = [p.grad.to_local().norm() for p in model.parameters()]\n"
        "    log(torch.stack(norms).norm())"
    ),
}
KEPT = {
    "norms that are listed, and not joined": (
        "norms = {n: p.grad.to_local().norm() for n, p in model.named_parameters()}\n    log(norms)"
    ),
    "a mean": "log(sum(p.grad.to_local().mean() for p in model.parameters()))",
    "a parameter": "log(sum(p.to_local().norm() for p in model.parameters()))",
    "a gradient of another": (
        "g = batch.grad.to_local()\n    total = 0\n    total += g.norm()\n    log(total)"
    ),
    "all are gathered": "log(sum(p.grad.full_tensor().norm() for p in model.parameters()))",
    "a name that says so": (
        "shard_norm = sum(p.grad.to_local().norm() for p in model.parameters())\n"
        "    log(shard_norm)"
    ),
    "what logs it reduces it": (
        "norm = sum(p.grad.to_local().norm() for p in model.parameters())\n"
        "    log('norm', norm, sync_dist=True)"
    ),
    "a collective beside it": (
        "total = 0\n    for p in model.parameters():\n"
        "        total += p.grad.to_local().norm() ** 2\n"
        "    torch.distributed.all_reduce(total)"
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_norm_of_shards_is_found(name: str) -> None:
    assert codes(PROGRAM.replace("BODY", FOUND[name])) == ["FSDP901"]


@pytest.mark.parametrize("name", KEPT)
def test_others_are_none(name: str) -> None:
    assert codes(PROGRAM.replace("BODY", KEPT[name])) == []
