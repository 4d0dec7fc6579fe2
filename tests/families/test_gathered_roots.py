"""Where a model is resharded before its parameters are read, and where nothing asks for it."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

HEAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def norm(model):
    with FSDP.summon_full_params(model, writeback=False):
        return sum(p.norm() for p in model.parameters())

def build(net):
    return FSDP(net)
"""
READ = "        print(norm(model))\n"
LOOP = """
def train(net, batches, other):
    model = build(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
"""


def emitted(body: str, *, head: str = HEAD) -> str:
    """The loop with a body, after a run."""
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return rewritten(head + LOOP + READ + lines)


TRAINED = (
    "model(x).sum().backward()",
    "loss = model(x).sum()\nloss.backward()",
    "with torch.autocast('cpu'):\n    loss = model(x).sum()\nother.scale(loss / 2).backward()",
    "out = model(x)\nloss = out.logits.sum()\nif other:\n    loss = loss * 2\nloss.backward()",
    "loss = model(x)\nif other:\n    other.scale(loss).backward()\nelse:\n    loss.backward()",
    "losses = []\nfor part in x:\n    losses.append(model(part))\nsum(losses).backward()",
    "loss = model(x)\nprint(loss.detach())\nother.backward(loss)",
)


@pytest.mark.parametrize("body", TRAINED)
def test_a_model_that_is_only_trained_is_sharded(body: str) -> None:
    assert "reshard" not in emitted(body)


MAY_BE_WHOLE = (
    "model(x)",
    "with torch.no_grad():\n    model(x)\nmodel(y).sum().backward()",
    "with torch.set_grad_enabled(other):\n    loss = model(x)\nloss.backward()",
    "model(x).detach().sum().backward()",
    "out = model(x)\nloss = other(out.detach())\nloss.backward()",
    "out = model(x)\nloss = other(y)\nloss.backward()",
    "loss = model(x)\nif other:\n    loss.backward()",
    "loss = model(x)\nif other:\n    continue\nloss.backward()",
    "loss = model(x)\nloss = other(y)\nloss.backward()",
    "loss = model(x)\nfor part in other:\n    loss.backward()",
    "step = lambda: model(x)\nstep().backward()",
    "model.eval()\nmodel(x).sum().backward()",
    "other.evaluate(model)\nmodel(x).sum().backward()",
    "model.generate(x)\nmodel(x).sum().backward()",
)


@pytest.mark.parametrize("body", MAY_BE_WHOLE)
def test_a_model_whose_backward_is_not_sure_is_resharded(body: str) -> None:
    assert "    model.reshard()\n" in emitted(body)


CALLED = """
def {name}(model, x):
    loss = model(x).sum()
    return {given}
"""


def test_the_backward_may_be_in_every_caller() -> None:
    head = HEAD + CALLED.format(name="forward", given="loss")
    assert "reshard" not in emitted("loss = forward(model, x)\nloss.backward()", head=head)
    assert "reshard" in emitted("loss = forward(model, x)\nprint(loss)", head=head)
    both = "forward(model, x).backward()\nwith torch.no_grad():\n    forward(model, y)"
    assert "reshard" in emitted(both, head=head)
    handed = "forward(model, x).backward()\nother.every_epoch(forward)"
    assert "reshard" in emitted(handed, head=head)
    head = HEAD + CALLED.format(name="forward", given="loss.detach()")
    assert "reshard" in emitted("loss = forward(model, x)\nloss.backward()", head=head)


def test_a_frozen_model_has_no_backward() -> None:
    frozen = "\ndef freeze(net):\n    net.requires_grad_(False)\n"
    source = HEAD.replace("    return FSDP(net)", "    freeze(net)\n    return FSDP(net)") + frozen
    body = "teacher = FSDP(other)\nloss = (model(x) - teacher(x)).sum()\nloss.backward()\nnorm({})"
    assert "reshard" in emitted(body.format("teacher"), head=source)
    assert "reshard" not in emitted(body.format("model").replace("teacher", "plain"), head=source)


@pytest.mark.parametrize(
    "wrapped",
    [
        "FSDP(net, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)",
        "FSDP(net, sharding_strategy=CHOSEN)",
        "FSDP(net, **SETTINGS)",
        "FSDP(net) if torch.distributed.is_initialized() else net",
    ],
)
def test_units_that_stay_gathered_are_all_resharded(wrapped: str) -> None:
    head = HEAD.replace("FSDP(net)", wrapped).replace(
        "as FSDP\n", "as FSDP\nfrom torch.distributed.fsdp import ShardingStrategy\n"
    )
    text = emitted("with torch.no_grad():\n    model(x)", head=head)
    assert "reshard_parameters(model)" in text or "full_params(model, writeback=False)" in text
    assert " model.reshard()" not in text


def test_a_part_that_stays_gathered_is_resharded_with_the_root() -> None:
    head = HEAD.replace(
        "    return FSDP(net)",
        "    net.head = FSDP(net.head, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)\n"
        "    return FSDP(net)",
    ).replace("as FSDP\n", "as FSDP\nfrom torch.distributed.fsdp import ShardingStrategy\n")
    assert "reshard_parameters(model)" in emitted("with torch.no_grad():\n    model(x)", head=head)
