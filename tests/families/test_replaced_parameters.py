"""Parameters that are put in the place of those of a sharded model, which puts its own back."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, outcomes

PROGRAM = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def double(layer):
    layer.weight = nn.Parameter(layer.weight * 2)


def main(net, plain):
    model = FSDP(net, use_orig_params=True)
    new = nn.Parameter(torch.ones(2))
    {written}
    return model
"""
LOST = [
    "model.head.weight = nn.Parameter(model.head.weight * 2)",
    "model.head.weight = new",
    "model.layers[0].weight = new",
    "model.module.head.weight = new",
    "setattr(model.head, 'weight', new)",
    "model.head.register_parameter('weight', new)",
    "model.head._parameters['weight'] = new",
    "torch.utils.swap_tensors(model.head.weight, new)",
    "for layer in model.modules():\n        layer.weight = new",
    "for layer in model.modules():\n        double(layer)",
]
OTHERS = [
    "plain.head.weight = new",
    "torch.utils.swap_tensors(plain.head.weight, new)",
    "setattr(model.head, 'weights', [1.0])",
    "model.head.step = 0",
    "plain.register_parameter('weight', new)",
    "double(plain)",
    "for layer in plain.modules():\n        double(layer)",
    "plain._parameters['weight'] = new",
]


@pytest.mark.parametrize("written", LOST)
def test_it_holds_the_model_back(written: str) -> None:
    result, after = migrate({"a.py": PROGRAM.format(written=written)})
    assert ("FSDP415", Outcome.LEFT) in outcomes(result)
    assert "fully_shard(" not in after["a.py"]


@pytest.mark.parametrize("written", OTHERS)
def test_others_hold_nothing_back(written: str) -> None:
    result, _ = migrate({"a.py": PROGRAM.format(written=written)})
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}


def test_without_use_orig_params_there_were_none() -> None:
    program = PROGRAM.format(written=LOST[0]).replace(", use_orig_params=True", "")
    result, _ = migrate({"a.py": program})
    assert "FSDP415" not in {code for code, _ in outcomes(result)}
