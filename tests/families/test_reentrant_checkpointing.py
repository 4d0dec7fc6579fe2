"""Reentrant checkpointing of sharded modules that may run twice before their backward."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
from functools import partial

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Linear(4, 4)

    def own(self, x):
        return self.block(x)

    def forward(self, x):
        return BODY


net = Net()
"""
STEP = "\n\ndef step():\n    model = FSDP(net)\n    "
ONCE = f"{STEP}model(1).sum().backward()\n"
TWICE = f"{STEP}(model(1) + model(2)).sum().backward()\n"
WRAPPED = "apply_activation_checkpointing(net, partial(checkpoint_wrapper, checkpoint_impl={}))\n"
REENTRANT = WRAPPED.format("CheckpointImpl.REENTRANT")
PLAIN = "self.block(x)"


def reviews(body: str, program: str) -> list[Outcome]:
    result, _ = migrate({"a.py": HEAD.replace("BODY", body) + program})
    found = [d for d in result.decisions if str(d.site.construct).startswith("reentrant")]
    return [d.outcome for d in found]


@pytest.mark.parametrize(
    ("body", "program"),
    [
        (PLAIN, REENTRANT + TWICE),
        ("checkpoint(self.block, x, use_reentrant=True)", TWICE),
        ("checkpoint(self.block, x)", TWICE),
        ("checkpoint(self.block, self.block(x), use_reentrant=True)", ONCE),
    ],
)
def test_it_is_marked(body: str, program: str) -> None:
    assert reviews(body, program) == [Outcome.REVIEW]


@pytest.mark.parametrize(
    ("body", "program"),
    [
        (PLAIN, REENTRANT + ONCE),
        (PLAIN, WRAPPED.format("CheckpointImpl.NO_REENTRANT") + TWICE),
        ("checkpoint(self.block, x, use_reentrant=False)", TWICE),
        ("checkpoint(self.own, x, use_reentrant=True)", TWICE),
        (PLAIN, "print(CheckpointImpl.NO_REENTRANT == CheckpointImpl.REENTRANT)\n" + TWICE),
        ("checkpoint(self.block, x, use_reentrant=True)", "net(1)\n"),
    ],
)
def test_it_is_not(body: str, program: str) -> None:
    assert reviews(body, program) == []


OWN = """\
import torch


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, *args):
        ctx.run = run
        ctx.save_for_backward(*args)
        with torch.no_grad():
            return run(*args)

    @staticmethod
    def backward(ctx, *grads):
        inputs = [a.detach().requires_grad_() for a in ctx.saved_tensors]
        with torch.enable_grad():
            outputs = ctx.run(*inputs)
        torch.autograd.backward(outputs, grads)
        return (None, *(a.grad for a in inputs))
"""
USER = HEAD.replace("BODY", "Checkpoint.apply(self.block, x)")


@pytest.mark.parametrize(
    ("own", "outcomes"),
    [
        (OWN, [Outcome.REVIEW]),
        (OWN.replace("torch.autograd.backward(outputs, grads)", "outputs.backward(*grads)"), None),
        (OWN.replace("ctx.run(", "torch.relu("), []),
        (OWN.replace("torch.autograd.Function", "object"), []),
        (OWN.replace("def backward", "def again"), []),
        (OWN.replace("torch.autograd.backward(outputs, grads)", "print(outputs)"), []),
        (OWN.replace("with torch.enable_grad():", "if True:"), []),
    ],
)
@pytest.mark.parametrize("beside", [True, False])
def test_a_checkpoint_of_the_projects_own(
    own: str, outcomes: list[Outcome] | None, *, beside: bool
) -> None:
    program = f"{USER}{TWICE}"
    files = {"a.py": f"from own import Checkpoint\n{program}", "own.py": own}
    if not beside:
        files = {"a.py": own + program}
    elif outcomes is None:
        return  # no text tells that the file matters
    result, _ = migrate(files)
    found = [d for d in result.decisions if str(d.site.construct).startswith("reentrant")]
    assert [d.outcome for d in found] == (outcomes if outcomes is not None else [Outcome.REVIEW])


HANDED = (
    OWN
    + """

def run_again(run, x):
    return Checkpoint.apply(run, x)


"""
)


@pytest.mark.parametrize(
    "body",
    [
        "Checkpoint.apply(self.block, x)",
        "Checkpoint.apply(self.own, x)",
        "run_again(self.block, x)",
        "run_again(self.own, x) if self.training else self.own(x)",
    ],
)
@pytest.mark.parametrize(("step", "marked"), [(ONCE, False), (TWICE, True)])
def test_a_part_that_runs_once_under_an_own_checkpoint(
    body: str, step: str, *, marked: bool
) -> None:
    own = HANDED if "run_again" in body else OWN
    result, _ = migrate({"a.py": own + HEAD.replace("BODY", body) + step})
    found = [d.outcome for d in result.decisions if str(d.site.construct).startswith("reentrant")]
    assert found == ([Outcome.REVIEW] if marked else [])


@pytest.mark.parametrize(
    "body",
    [
        "Checkpoint.apply(self.block, Checkpoint.apply(self.block, x))",
        "run_again(self.block, run_again(self.block, x))",
        "run_again(self.block, Checkpoint.apply(self.block, x))",
        "sum(run_again(self.block, each) for each in x)",
        "Checkpoint.apply(lambda y: self.block(y), x)",
        "Checkpoint.apply(net, x)",
        "self.block(Checkpoint.apply(self.block, x))",
    ],
)
def test_what_may_run_twice_under_an_own_checkpoint(body: str) -> None:
    result, _ = migrate({"a.py": HANDED + HEAD.replace("BODY", body) + ONCE})
    found = [d.outcome for d in result.decisions if str(d.site.construct).startswith("reentrant")]
    assert found == [Outcome.REVIEW]
