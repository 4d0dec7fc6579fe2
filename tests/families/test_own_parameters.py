"""Shapes of parameters are read in methods of the model, through lists, dictionaries and methods
that are handed on: FSDP1 showed pieces of one dimension there."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x)

METHODS


FUNCTIONS


def main(registry, batch):
    MAIN
"""
SPLIT = """\
    def split(self):
        decay = [p for p in self.parameters() if p.ndim > 1]
        return torch.optim.AdamW(decay)
"""
ASSIGNED = "for p in self.parameters():\n            p.data = p * 2\n        decay = []"
NANO = """\
    def split(self):
        named = {n: p for n, p in self.named_parameters()}
        named = {n: p for n, p in named.items() if p.requires_grad}
        decay = [p for n, p in named.items() if p.dim() >= 2]
        return torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}])
"""
HANDED = """\
    def split(self):
        return torch.optim.AdamW(matrices(self.named_parameters))
"""
MATRICES = """\
def matrices(named_parameters):
    found = []
    for name, p in named_parameters():
        if len(p.shape) > 1:
            found.append(p)
    return found
"""
HELPED = (
    f"{SPLIT.replace('def split', 'def helper')}\n    def split(self):\n        self.helper()\n"
)
WRAP = "model = FSDP(Net(), use_orig_params=True)\n    "
SHARDED = [
    (SPLIT, "", f"{WRAP}model.split()"),
    (SPLIT, "", f"{WRAP}model.module.split()"),
    (SPLIT, "", f"{WRAP}inner = model.module\n    inner.split()"),
    (SPLIT, "", "model = FSDP(registry['net'](), use_orig_params=True)\n    model.split()"),
    (HELPED, "", f"{WRAP}model.split()"),
    (NANO, "", f"{WRAP}model.split()"),
    (HANDED, MATRICES, f"{WRAP}model.split()"),
    ("", MATRICES, f"{WRAP}return matrices(model.named_parameters)"),
    (
        "",
        "",
        f"{WRAP}every = list(model.parameters())\n    return [p for p in every if p.ndim > 1]",
    ),
    (
        "",
        "",
        f"{WRAP}named = [(n, p) for n, p in model.named_parameters()]\n"
        "    return [p for n, p in named if p.dim() > 1]",
    ),
    (
        "",
        "",
        f"{WRAP}named = dict(a=list(model.parameters()))\n"
        "    every = {n: p for n, p in model.named_parameters()}\n"
        "    return [p for p in every.values() if len(p.shape) > 1]",
    ),
]
PLAIN = [
    (SPLIT, "", "net = Net()\n    net.split()\n    return FSDP(net, use_orig_params=True)"),
    (NANO, "", "net = Net()\n    net.split()\n    return FSDP(net, use_orig_params=True)"),
    (SPLIT, "", f"{WRAP}return model"),
    (SPLIT, "", "model = FSDP(nn.Linear(4, 4), use_orig_params=True)\n    Net().split()"),
    ("", MATRICES, f"{WRAP}matrices(Net().named_parameters)"),
    ("", MATRICES, f"{WRAP}matrices(registry.items)"),
    ("", "", f"{WRAP}return [x for k, x in batch.items() if x.ndim > 1]"),
    ("", "", f"{WRAP}losses = [model(x) for x in batch]\n    return [x for x in losses if x.ndim]"),
    (
        "",
        "",
        "net = Net()\n    every = {n: p for n, p in net.named_parameters()}\n"
        "    shapes = [p.shape for p in every.values()]\n"
        "    return shapes, FSDP(net, use_orig_params=True)",
    ),
]


def shapes(methods: str, functions: str, main: str) -> list[Outcome]:
    text = PROGRAM.replace("METHODS", methods).replace("FUNCTIONS", functions)
    result, _ = migrate({"a.py": text.replace("MAIN", main)})
    assert not result.problems
    of_shapes = [d for d in result.decisions if str(d.site.construct) == "parameter shape"]
    return [d.outcome for d in of_shapes]


@pytest.mark.parametrize(("methods", "functions", "main"), SHARDED)
def test_of_a_sharded_model(methods: str, functions: str, main: str) -> None:
    assert set(shapes(methods, functions, main)) == {Outcome.REVIEW}


@pytest.mark.parametrize(("methods", "functions", "main"), PLAIN)
def test_of_what_is_not_sharded(methods: str, functions: str, main: str) -> None:
    assert shapes(methods, functions, main) == []


def test_what_is_written_to_in_a_method_is_a_site() -> None:
    methods = (
        "    def split(self):\n        for p in self.parameters():\n            p.data = p * 2\n"
    )
    text = PROGRAM.replace("METHODS", methods).replace("FUNCTIONS", "")
    result, _ = migrate({"a.py": text.replace("MAIN", f"{WRAP}model.split()")})
    assert "parameter data" in {str(d.site.construct) for d in result.decisions}
