"""A backward that is given parameters of what is not followed is marked beside sharded models."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Adapter:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def parameters(self):
        return [p for group in self.optimizer.param_groups for p in group["params"]]


class Plain(nn.Module):
    def forward(self, x):
        return x


def backward(loss, inputs=None):
    loss.backward(inputs=inputs)


def main(net, x, unseen):
    net = FSDP(net)
    adapter = Adapter(torch.optim.AdamW(net.parameters()))
    plain = Plain()
    backward(net(x).sum()GIVEN)
"""


def marked(given: str) -> bool:
    result, after = migrate({"a.py": PROGRAM.replace("GIVEN", given)})
    text = "those of a sharded model get no gradients here" in " ".join(after["a.py"].split())
    found = [d for d in result.decisions if "backward" in str(d.site.construct)]
    assert all(d.outcome == Outcome.REVIEW for d in found)
    assert bool(found) == ("TODO(fsdp-migrate FSDP408)" in after["a.py"]) >= text
    return bool(found)


@pytest.mark.parametrize("given", [", inputs=unseen.parameters()", ", unseen.net.parameters()"])
def test_out_of_sight(given: str) -> None:
    assert marked(given)


@pytest.mark.parametrize("given", ["", ", inputs=[x]", ", inputs=plain.parameters()"])
def test_in_sight(given: str) -> None:
    assert not marked(given)
