"""Objects that wrap what they are called with: ``Sharder(config)(net)``."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Sharder:
    def __init__(self, config):
        self.config = config

    def __call__(self, net):
        return {given}


class Special(Sharder):
    pass


def main(config, x):
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    {made}
    model(x).sum().backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
"""
WRAPPED = "FSDP(net, use_orig_params=True)"


@pytest.mark.parametrize(
    "made",
    [
        "model = Sharder(config)(net)",
        "model = Special(config)(net=net)",
        "sharder = Sharder(config); model = sharder(net)",
    ],
)
def test_its_model_is_a_model(made: str) -> None:
    after = rewritten(PROGRAM.format(given=WRAPPED, made=made))
    assert "clip_grad_norm_(model.parameters(), 1.0)" in after
    body = after[after.index("def main") :]
    assert body.index("(net") < body.index("SGD(")
    assert "TODO" not in body


def test_an_object_that_gives_something_else_is_none() -> None:
    made = f"model = Sharder(config)(net); print({WRAPPED})"
    after = rewritten(PROGRAM.format(given="[net]", made=made))
    assert "    model.clip_grad_norm_(1.0)" in after
