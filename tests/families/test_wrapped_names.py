"""What is asked of a module behind its wrap, by the name that it had before."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)

    def size(self):
        return sum(p.numel() for p in self.parameters())

    def forward(self, x):
        return self.head(x)


def size_of(net):
    return sum(p.numel() for p in net.parameters())


def flops_of(net):
    return 2 * net.size()


def wrap(net):
    return FSDP(net)


def main(path, other, sharded):
    net = Net()
    {before}
    {wrap}
    {after}
    model(torch.ones(2, 4)).sum().backward()
"""
TRAINER = """\
class Trainer:
    def __init__(self, net):
        self.net = net
        self.model = FSDP(self.net)

    def save(self, path):
        torch.save(self.net.state_dict(), path)
"""
WITH_TRAINER = PROGRAM.replace("def main", f"{TRAINER}\n\ndef main")
WRAP = "model = FSDP(net)"
MARKED = [
    "print(sum(p.numel() for p in net.parameters()))",
    "print(net.size())",
    "print(size_of(net))",
    "print(size_of(net=net))",
    "print(flops_of(net))",
    "print(sum(p.norm() ** 2 for p in net.parameters()))",
    "torch.save(net.state_dict(), path)",
    "[dist.all_reduce(p.grad) for p in net.parameters()]",
    "torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)",
]
PLAIN = [
    ("print(net.size(), size_of(net), flops_of(net))", WRAP, ""),
    ("net.load_state_dict(torch.load(path))", WRAP, ""),
    ("net.head.weight.data = torch.ones(4, 4)", WRAP, ""),
    ("", WRAP, "print(sum(p.numel() for p in other.parameters()))"),
    ("", WRAP, "net = Net(); print(sum(p.numel() for p in net.parameters()), net.size())"),
    ("", WRAP, "net = Net(); torch.save(net.state_dict(), path)"),
    ("", "model = FSDP(net) if sharded else net", "print(net.head.in_features)"),
    (
        "",
        "if sharded:\n        model = FSDP(net)\n    else:\n        model = net",
        "if not sharded:\n        torch.save(net.state_dict(), path)",
    ),
]


def _migrated(program: str) -> str:
    _, files = migrate({"train.py": program})
    return files["train.py"]


@pytest.mark.parametrize("wrap", [WRAP, "model = wrap(net)", "model = wrap(net=net)"])
@pytest.mark.parametrize("after", MARKED)
def test_it_is_asked_of_what_is_sharded(after: str, wrap: str) -> None:
    assert "TODO(fsdp-migrate" in _migrated(PROGRAM.format(before="", wrap=wrap, after=after))


def test_data_is_copied_in_place() -> None:
    write = "net.head.weight.data = torch.ones(4, 4)"
    after = _migrated(PROGRAM.format(before="", wrap=WRAP, after=write))
    assert "net.head.weight.data.copy_(torch.ones(4, 4))" in after


def test_an_attribute_is_asked_in_other_methods() -> None:
    after = _migrated(WITH_TRAINER.format(before="", wrap=WRAP, after=""))
    assert "get_model_state_dict(\n" in after or "get_model_state_dict(self.net" in after
    assert after.count("TODO(fsdp-migrate FSDP302)") == 1


@pytest.mark.parametrize(("before", "wrap", "after"), PLAIN)
def test_it_is_plain_before_and_by_other_names(before: str, wrap: str, after: str) -> None:
    text = _migrated(PROGRAM.format(before=before, wrap=wrap, after=after))
    assert "TODO" not in text
    for line in (before, after):
        assert line in text


ATTRIBUTES = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, net, path):
        self.net = net
        {before}
        self.{model} = FSDP(self.net)

    def load(self, path):
        self.net.load_state_dict(torch.load(path))


Trainer(torch.nn.Linear(2, 2), "last.pt").load("last.pt")
"""
LOADED = "self.net.load_state_dict(torch.load(path))\n"


def test_an_attribute_that_is_the_model_afterwards_is_no_earlier_name() -> None:
    text = _migrated(ATTRIBUTES.format(before="pass", model="net"))
    assert LOADED not in text


def test_a_method_that_runs_above_the_wrap_alone_has_a_plain_module() -> None:
    program = ATTRIBUTES.format(before="self.load(path)", model="model")
    text = _migrated(program.replace('.load("last.pt")\n', "\n"))
    assert "TODO" not in text
    assert LOADED in text
