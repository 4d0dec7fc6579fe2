"""Optimizers of the project's own: those that go by shapes are named, and no others."""

from __future__ import annotations

import textwrap

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from own import Own


def build(net):
    model = FSDP(net, use_orig_params=True)
    return model, Own({given})
"""
CLASS = """\
import math
import numpy as np
import torch


def helper(g):
    {helper}


class Own({base}):
    def __init__(self, params, lr=1e-3):
        {init}
        self.lr = lr

    def each(self):
        for group in self.param_groups:
            yield from ((p, self.state[p]) for p in group["params"] if p.grad is not None)

    @torch.no_grad()
    def step(self, closure=None):
{step}
"""
TORCHS = {"base": "torch.optim.Optimizer", "init": "super().__init__(params, dict(lr=lr))"}
# The optimizer is named, or the place where it looks at a state that is sharded.
MARKS = {"FSDP410", "FSDP408"}
EACH = "for p, s in self.each():\n    "


def marked(
    step: str,
    helper: str = "return g",
    given: str = "model.parameters()",
    base: str = TORCHS["base"],
    init: str = TORCHS["init"],
) -> bool:
    own = CLASS.format(
        helper=helper, base=base, init=init, step=textwrap.indent(textwrap.dedent(step), " " * 8)
    )
    result, after = migrate({"train.py": PROGRAM.format(given=given), "own.py": own})
    assert not result.problems
    said = {d.code for d in result.decisions if d.outcome is Outcome.REVIEW} & MARKS
    written = after["train.py"] + after["own.py"]
    assert said == {each for each in MARKS if f"(fsdp-migrate {each})" in written}
    return bool(said)


SHAPED = [
    EACH + "u = s['buf']\n    if u.ndim == 2:\n        p.sub_(u)",
    EACH + "g = s['buf'].lerp_(p.grad, 0.1)\n    p.sub_(g @ g.T @ g)",
    EACH + "p.sub_(s['buf'] / s['buf'].norm())",
    EACH + "d = p.grad\n    if d.dim() > 1:\n        d = d - d.mean(dim=1, keepdim=True)",
    EACH + "for size in s['buf'].shape:\n        s[size] = p.grad",
]


@pytest.mark.parametrize("step", SHAPED)
def test_a_step_that_goes_by_shapes_is_named(step: str) -> None:
    assert marked(step)


@pytest.mark.parametrize(
    "given",
    [
        "list(model.parameters())",
        "[{'params': model.parameters()}]",
        "[p for p in model.parameters()]",
    ],
)
def test_however_it_gets_its_parameters(given: str) -> None:
    assert marked(SHAPED[0], given=given)


@pytest.mark.parametrize(
    "helper",
    [
        "return torch.linalg.svd(g)[0]",
        "return g if g.ndim < 2 else g @ g.T",
        "return g / torch.norm(g)",
    ],
)
def test_a_function_that_the_step_calls_is_read(helper: str) -> None:
    assert marked(EACH + "p.sub_(helper(p.grad))", helper)


def test_a_class_that_torch_knows_nothing_of_is_one_by_its_step_and_its_gradients() -> None:
    assert marked(
        "for p, m in zip(self.params, self.momenta):\n    p.sub_(helper(m.lerp_(p.grad, 0.1)))",
        "return g if g.dim() < 2 else g @ g.t()",
        base="",
        init="self.params = list(params); self.momenta = [torch.zeros_like(p) for p in params]",
    )


@pytest.mark.parametrize(
    ("step", "helper"),
    [
        # Lion, Adam and momentum go by elements.
        (
            EACH + "m = s['m']\n    p.add_(m.lerp(p.grad, 0.1).sign_(), alpha=-self.lr)",
            "return g",
        ),
        (
            EACH + "p.addcdiv_(s['m'], s['v'].sqrt().add_(1e-8), value=-self.lr)",
            "return g",
        ),
        (
            EACH + "s['m'] = torch.zeros_like(p)\n    p.sub_(p.grad)",
            "return g",
        ),
        # Numbers that are no tensors', and messages.
        (
            EACH + "p.mul_(1 - max(0.1, np.mean([1, 2])) * math.sqrt(s['t']))\n    p.grad",
            "return g",
        ),
        (
            EACH + "if p.grad.is_sparse:\n        raise RuntimeError(f'sparse: {len(s)}')",
            "return g",
        ),
        # This rank's part, which it knows of.
        (EACH + "d = p.grad.to_local()\n    d.div_(d.norm())", "return g"),
        # Nobody calls it.
        (EACH + "p.sub_(p.grad)", "return g @ g.T"),
        # A closure of the caller's is none of its functions.
        ("loss = closure()\nfor p, s in self.each():\n    p.sub_(p.grad)", "return g.mean()"),
    ],
)
def test_a_step_that_goes_by_elements_is_not(step: str, helper: str) -> None:
    assert not marked(step, helper)


@pytest.mark.parametrize(
    "given", ["net.teacher().parameters()", "torch.nn.Linear(2, 2).parameters()"]
)
def test_nor_is_one_that_has_no_parameters_of_the_model(given: str) -> None:
    assert not marked(SHAPED[0], given=given)


ONE = "for p in {owner}.parameters():\n        {chosen}"


@pytest.mark.parametrize(
    ("chosen", "owner", "is_said"),
    [
        ("print((Own if p.ndim > 1 else torch.optim.AdamW)([p]))", "model", True),
        ("kind = Own if p.ndim > 1 else torch.optim.AdamW; print(kind([p]))", "model", True),
        ("print((Own if p.ndim > 1 else torch.optim.AdamW)([p]))", "plain", False),
        ("print((torch.optim.SGD if Own else torch.optim.AdamW)([p]))", "model", False),
        ("print((Own if p.ndim > 1 else torch.optim.AdamW)([3]))", "model", False),
    ],
)
def test_one_of_several_classes_is_chosen(chosen: str, owner: str, is_said: bool) -> None:
    """What it says of shapes, where the class is chosen, does not say what its step does."""
    given = (
        f"[])\n\n\ndef each(net, plain):\n    model = FSDP(net, use_orig_params=True)\n    {ONE}"
    )
    program = PROGRAM.format(given=given.format(owner=owner, chosen=chosen) + "\n\n\nprint(1")
    own = CLASS.format(
        helper="return g", step=textwrap.indent(textwrap.dedent(SHAPED[1]), " " * 8), **TORCHS
    )
    result, _ = migrate({"train.py": program, "own.py": own})
    assert any(d.code == "FSDP410" for d in result.decisions) is is_said
