"""Optimizers of other packages: which are known, and which are given sharded parameters at all."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
{imported}
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net, other):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
    return model, {made}
"""


def marked(imported: str, made: str) -> bool:
    result, after = migrate({"example.py": PROGRAM.format(imported=imported, made=made)})
    assert not result.problems
    said = any(d.outcome is Outcome.REVIEW for d in result.decisions)
    assert said == ("FSDP410" in after["example.py"])
    return said


@pytest.mark.parametrize(
    ("imported", "made"),
    [
        ("import distributed_shampoo as ds", "ds.DistributedShampoo(model.parameters())"),
        ("from apex.optimizers import FusedAdam", "FusedAdam(model.parameters())"),
        ("from heavyball import ForeachSOAP", "ForeachSOAP(list(model.parameters()))"),
        ("from muon import Muon as M", "M([p for p in model.parameters() if p.ndim > 1])"),
        ("from deepspeed.ops.adam import FusedAdam", "FusedAdam([{'params': model.parameters()}])"),
    ],
)
def test_an_optimizer_that_nothing_is_known_of_is_named(imported: str, made: str) -> None:
    assert marked(imported, made)


@pytest.mark.parametrize(
    ("imported", "made"),
    [
        ("from torch.optim import AdamW", "AdamW(model.parameters())"),
        ("from torchao.optim import AdamW8bit", "AdamW8bit(model.parameters())"),
        ("import lion_pytorch", "lion_pytorch.Lion(model.parameters())"),
        ("import schedulefree", "schedulefree.SGDScheduleFree(model.parameters())"),
        ("from transformers import AdamW", "AdamW(model.parameters())"),
        ("from apex.optimizers import FusedAdam", "FusedAdam(other.parameters())"),
        ("from torch_optimizer import Lookahead", "Lookahead(optimizer)"),
        ("from lamb import lamb_names", "lamb_names(model.parameters())"),
        ("from deepspeed.ops.adam import FusedAdam", "isinstance(optimizer, FusedAdam)"),
    ],
)
def test_what_is_known_or_has_no_sharded_parameters_is_not(imported: str, made: str) -> None:
    assert not marked(imported, made)
