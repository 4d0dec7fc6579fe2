"""A model by the name that it had before it was wrapped."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)

    def forward(self, x):
        return self.body(x)


def main(x, flag):
    net = Net()
    {}
    return model


main(torch.ones(4), True)
"""
WRAP = "model = FSDP(net, use_orig_params=True)\n    model(x).sum().backward()\n    "
USES = {
    "counted": "print(sum(p.numel() for p in net.parameters()))",
    "a part, counted": "print(sum(p.numel() for p in net.body.parameters()))",
    "clipped": "torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)",
    "norms": "print(torch.stack([p.grad.norm() for p in net.parameters()]).norm())",
    "shapes": "print([p for p in net.parameters() if p.ndim < 2])",
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_is_done_behind_the_wrap_is_done_to_sharded_parameters(use: str) -> None:
    result, _ = migrate({"example.py": HEAD.format(WRAP + use)})
    found = [d for d in result.decisions if d.code in {"FSDP401", "FSDP408"}]
    assert [d.outcome for d in found] == [Outcome.REVIEW]


@pytest.mark.parametrize("owner", ["net", "net.body"])
def test_data_is_copied_into_its_parameters(owner: str) -> None:
    use = f"for p in {owner}.parameters():\n        p.data = p.data * 2"
    _, after = migrate({"example.py": HEAD.format(WRAP + use)})
    assert "p.data.copy_(p.data * 2)" in after["example.py"]


OTHERS = {
    "before it is wrapped": USES["counted"] + "\n    " + WRAP,
    "in the other branch": (
        "if flag:\n        model = FSDP(net, use_orig_params=True)\n    else:\n"
        "        model = net\n"
        "        " + USES["counted"]
    ),
    "by a name that is another model's since": (
        WRAP + "net = nn.Linear(2, 2)\n    " + USES["counted"]
    ),
    "of a copy": "import copy\n    plain = copy.deepcopy(net)\n    "
    + WRAP
    + "print(sum(p.numel() for p in plain.parameters()))",
}


@pytest.mark.parametrize("use", OTHERS.values(), ids=OTHERS)
def test_of_what_is_not_sharded_nothing_is_said(use: str) -> None:
    result, _ = migrate({"example.py": HEAD.format(use)})
    assert not [d for d in result.decisions if d.code in {"FSDP401", "FSDP408"}]
