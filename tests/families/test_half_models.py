"""Models in float16, whose gradients FSDP1's scaler took and torch's refuses."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from transformers import AutoModel


class Net(nn.Module):
    pass


def main(flag):
    net = Net()
    CAST
    model = FSDP(net, mixed_precision=MixedPrecision(param_dtype=torch.float16))
    return ShardedGradScaler()
"""
HALF = {
    "by half()": "net.half()",
    "by to()": "net.to(torch.float16)",
    "by its other name": "net.to(dtype=torch.half)",
    "under a condition": "if flag:\n        net.to(torch.float16)",
    "by a variable": "kind = torch.float16\n    net.to(kind)",
    "assigned": "net = net.half()",
    "where it is made": "net = AutoModel.from_pretrained('x', torch_dtype=torch.float16)",
}


@pytest.mark.parametrize("cast", HALF.values(), ids=HALF)
def test_a_scaler_of_gradients_in_float16_is_marked(cast: str) -> None:
    _, after = migrate({"example.py": PROGRAM.replace("CAST", cast)})
    assert "refuses to unscale" in " ".join(after["example.py"].split("#     "))


OTHERS = {
    "not at all": "pass",
    "to bfloat16": "net.to(torch.bfloat16)",
    "to a device": "net.to('cuda')",
    "an input": "x = torch.ones(2)\n    x = x.half()",
    "another model": "other = Net()\n    other.half()",
}


@pytest.mark.parametrize("cast", OTHERS.values(), ids=OTHERS)
def test_other_gradients_are_scaled(cast: str) -> None:
    _, after = migrate({"example.py": PROGRAM.replace("CAST", cast)})
    assert "TODO(fsdp-migrate FSDP405)" not in after["example.py"]
