"""FSDP408: hooks on the parameters of sharded models, and optimizers that step in the backward."""

from __future__ import annotations

import pytest

from fsdp_migrate.families.parameters.parameter_hooks import (
    ACCUMULATED,
    STEPPING,
    TENSOR,
    WATCHED,
)
from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.optim import _apply_optimizer_in_backward


def halve(gradient):
    return gradient / 2


def train(net):
    model = FSDP(net, use_orig_params=ORIGINAL)
    plain = torch.nn.Linear(3, 3)
    outputs = [torch.ones(3, requires_grad=True)]
    BODY
    return model, plain, outputs
"""


def hooks(body: str, original: str = "False") -> list[Outcome]:
    source = PROGRAM.replace("BODY", body).replace("ORIGINAL", original)
    result, _ = migrate({"train.py": source})
    names = {str(each) for each in (TENSOR, ACCUMULATED, STEPPING)}
    return [d.outcome for d in result.decisions if str(d.site.construct) in names]


IN_LOOP = "for p in GIVEN:\n        p.METHOD(halve)"
OF_MODEL = {
    "all": IN_LOOP.replace("GIVEN", "model.parameters()"),
    "a list": "listed = list(model.parameters())\n    " + IN_LOOP.replace("GIVEN", "listed"),
    "one": "model.module.weight.METHOD(halve)",
}
OF_OTHERS = {
    "a plain model": IN_LOOP.replace("GIVEN", "plain.parameters()"),
    "tensors": IN_LOOP.replace("GIVEN", "outputs"),
    "an output": "model(outputs[0]).METHOD(halve)",
}


@pytest.mark.parametrize("body", OF_MODEL.values(), ids=OF_MODEL)
def test_a_tensor_hook_that_flat_parameters_had_is_left(body: str) -> None:
    assert hooks(body.replace("METHOD", "register_hook")) == [Outcome.LEFT]


@pytest.mark.parametrize("body", OF_MODEL.values(), ids=OF_MODEL)
def test_a_tensor_hook_that_ran_with_neither_is_no_site(body: str) -> None:
    assert hooks(body.replace("METHOD", "register_hook"), "True") == []


@pytest.mark.parametrize("original", ["True", "False"])
@pytest.mark.parametrize("body", OF_MODEL.values(), ids=OF_MODEL)
def test_a_hook_that_runs_now_is_shown(body: str, original: str) -> None:
    body = body.replace("METHOD", "register_post_accumulate_grad_hook")
    assert hooks(body, original) == [Outcome.REVIEW]


@pytest.mark.parametrize("method", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize("body", OF_OTHERS.values(), ids=OF_OTHERS)
def test_hooks_on_others_are_no_sites(body: str, method: str) -> None:
    assert hooks(body.replace("METHOD", method)) == []


@pytest.mark.parametrize("original", ["True", "False"])
@pytest.mark.parametrize(
    "given", ["model.parameters(), {}", "params=list(model.parameters()), optimizer_kwargs={}"]
)
def test_an_optimizer_in_the_backward_is_left(given: str, original: str) -> None:
    body = f"_apply_optimizer_in_backward(torch.optim.SGD, {given})"
    assert hooks(body, original) == [Outcome.LEFT]


def test_an_optimizer_in_the_backward_of_a_plain_model_is_no_site() -> None:
    given = "torch.optim.SGD, plain.parameters(), {'lr': 0.1}"
    assert hooks(f"_apply_optimizer_in_backward({given})") == []


WATCHING = """\
import wandb
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net, other, choose):
    model = FSDP(net, use_orig_params=ORIGINAL)
    WATCH
    return model
"""


@pytest.mark.parametrize(
    ("watch", "original", "is_site"),
    [
        ("wandb.watch(model)", "False", True),
        ("wandb.watch(models=model, log='all')", "choose()", True),
        ("wandb.watch(model, log=choose())", "False", True),
        ("wandb.watch(model)", "True", False),
        ("wandb.watch(model, log='parameters')", "False", False),
        ("wandb.watch(model, log=None)", "False", False),
        ("wandb.watch(other)", "False", False),
        ("choose().watch(model)", "False", False),
    ],
)
def test_logged_gradients_are_told(watch: str, original: str, *, is_site: bool) -> None:
    text = WATCHING.replace("WATCH", watch).replace("ORIGINAL", original)
    result, after = migrate({"train.py": text})
    found = [d.outcome for d in result.decisions if d.site.construct == WATCHED]
    assert found == [Outcome.REVIEW] * is_site
    assert watch in after["train.py"]
