"""Parts of a sharded model that have a name of their own: numbers of their parameters."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Trainer:
    def __init__(self, model, other):
        self.model = model
        self.other = other
        {kept}

    def step(self, batch):
        self.model(batch).sum().backward()
        {used}


def main(batch):
    net = Net()
    {before}
    model = FSDP(net, use_orig_params=True)
    Trainer(model, Net()).step(batch)
"""
BLOCK = "print(block.weight.norm().item())"
USES = [
    ("", f"for block in self.model.blocks: {BLOCK}"),
    ("", f"for i, block in enumerate(self.model.blocks): {BLOCK}"),
    ("", f"for block in reversed(self.model.module.blocks): {BLOCK}"),
    ("", "print([b.weight.grad.norm().item() for b in self.model.blocks])"),
    ("", "head = self.model.head; print(head.weight.norm().item())"),
    ("", "net = getattr(self.model, 'module', self.model); print(net.head.weight.norm().item())"),
    ("self.net = model.module", "print(self.net.head.weight.norm().item())"),
    ("self.head = model.head", "print(self.head.weight.sum().item())"),
    ("self.net = model.module", "print(sum(p.sum().item() for p in self.net.parameters()))"),
    (
        "self.net = getattr(model, 'module', model)",
        "print(sum(p.grad.norm().item() for p in self.net.parameters()))",
    ),
]
OTHERS = [
    ("", f"for block in self.other.blocks: {BLOCK}"),
    ("", "head = self.other.head; print(head.weight.norm().item())"),
    ("self.net = other", "print(self.net.head.weight.norm().item())"),
    ("self.net = getattr(other, 'module', other)", "print(self.net.head.weight.sum().item())"),
    ("self.loss = nn.Linear(4, 4)", "print(self.loss.weight.norm().item())"),
    ("", "head = self.model.head; print(head.weight.device, head.weight.dtype)"),
    ("", "out = self.model(batch); print(out.sum().item())"),
]


def program(kept: str, used: str, before: str = "pass") -> str:
    return PROGRAM.format(kept=kept or "pass", used=used, before=before)


@pytest.mark.parametrize(("kept", "used"), USES)
def test_numbers_of_its_parameters_are_marked(kept: str, used: str) -> None:
    _, files = migrate({"train.py": program(kept, used)})
    assert "TODO(fsdp-migrate FSDP408)" in files["train.py"]


@pytest.mark.parametrize(("kept", "used"), OTHERS)
def test_what_is_no_part_of_it_stays(kept: str, used: str) -> None:
    _, files = migrate({"train.py": program(kept, used)})
    assert "FSDP408" not in files["train.py"]


@pytest.mark.parametrize(
    "before",
    [
        "head = net.head; print(head.weight.norm().item())",
        "print([b.weight.norm().item() for b in net.blocks])",
        "print([b.weight.norm().item() for b in (net.head, net.blocks[0])])",
    ],
)
def test_numbers_from_before_the_wrap_stay(before: str) -> None:
    _, files = migrate({"train.py": program("", "pass", before)})
    assert "FSDP408" not in files["train.py"]
