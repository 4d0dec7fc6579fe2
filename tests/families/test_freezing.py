"""Parameters that are frozen after a forward: the model is resharded first, and only then."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(x)

    def freeze(self):
        for parameter in self.parameters():
            parameter.requires_grad = False

    def freeze_some(self):
        self.freeze()

    def describe(self):
        return [p.requires_grad for p in self.parameters()]


def run(loader, flags):
    model = FSDP(Net(), use_orig_params=True)
    early(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        with torch.no_grad():
            print(model(x))
        LATE
        model(x).sum().backward()
        optimizer.step()


def early(model):
    EARLY
"""


def emitted(early: str = "pass", late: str = "pass") -> str:
    lines = late.replace("\n", "\n        ")
    return rewritten(PROGRAM.replace("LATE", lines).replace("EARLY", early))


@pytest.mark.parametrize(
    "late",
    [
        "model.module.freeze()",
        "model.module.freeze_some()",
        "model.requires_grad_(False)",
        "model.head.requires_grad_(False)",
        "model.head.weight.requires_grad = False",
        "for p in model.parameters():\n    p.requires_grad_(False)",
        "for p in model.head.parameters():\n    if flags:\n        p.requires_grad = False",
        "for i, (n, p) in enumerate(model.named_parameters()):\n    p.requires_grad = i > 1",
    ],
)
def test_resharded_first(late: str) -> None:
    lines = [line.strip() for line in emitted(late=late).splitlines()]
    first = late.splitlines()[0].replace(".module", "")
    assert lines[lines.index(first) - 1] == "model.reshard()"


@pytest.mark.parametrize(
    "late",
    [
        "flags.head.requires_grad_(False)",
        "x.requires_grad = True",
        "print(model.module.describe())",
        "for p in flags.parameters():\n    p.requires_grad = False",
        "print([p.requires_grad for p in model.parameters()])",
    ],
)
def test_left_alone(late: str) -> None:
    assert "reshard" not in emitted(late=late)


@pytest.mark.parametrize(
    "early", ["model.requires_grad_(False)", "model.module.freeze()", "model.head.requires_grad_()"]
)
def test_before_anything_runs(early: str) -> None:
    assert "reshard" not in emitted(early=early)


def test_a_model_of_a_class_that_is_not_seen() -> None:
    made = PROGRAM.replace("FSDP(Net(),", "FSDP(MODELS[flags.name](),").replace("EARLY", "pass")
    after = rewritten(made.replace("LATE", "model.module.freeze()"))
    assert "        model.reshard()\n        model.freeze()\n" in after


OF_UNKNOWN = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from transformers import AutoModel


CLASS:
    def train(self):
        for parameter in self.model.parameters():
            parameter.requires_grad = False


def run(name, loader):
    model = FSDP(AutoModel.from_pretrained(name))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        with torch.no_grad():
            print(model(x))
        model.train()
        model(x).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("cls", "may_be_a_models"),
    [
        ("class Task", False),
        ("class Base:\n    pass\n\n\nclass Task(Base)", False),
        ("class Net(nn.Module)", True),
        ("class Net(Mixin)", True),  # of nothing that is known
        ("class Made(nn.Module):\n    pass\n\n\nclass Net(Made)", True),
    ],
)
def test_methods_of_classes_that_are_no_modules_freeze_no_model(
    cls: str, may_be_a_models: bool
) -> None:
    after = rewritten(OF_UNKNOWN.replace("CLASS", cls))
    assert ("reshard" in after) is may_be_a_models


def test_a_mixin_of_a_module_has_methods_of_models() -> None:
    source = OF_UNKNOWN.replace("CLASS", "class Freezing")
    assert "reshard" in rewritten(f"{source}\n\nclass Net(Freezing, nn.Module):\n    pass\n")


BOX = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Box(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.name = "box"
        BEFORE
        self.net = FSDP(net, use_orig_params=True)
        AFTER

    def forward(self, x):
        return self.net(x)

    def evaluate(self, x):
        with torch.no_grad():
            return self.net(x)


def run(nets, x):
    for net in nets:
        box = Box(net)
        box.evaluate(x)
        box(x).sum().backward()
"""
FREEZING = "for p in self.net.parameters(): p.requires_grad = False"


def boxed(before: str = "pass", after: str = "pass") -> str:
    indented = (text.replace("\n", "\n        ") for text in (before, after))
    return rewritten(BOX.replace("BEFORE", next(indented)).replace("AFTER", next(indented)))


@pytest.mark.parametrize(
    "after",
    [
        FREEZING,
        f"tokens = tokenizer(text)\nself.net.train()\n{FREEZING}",
        f"for i in range(2):\n    self.net = FSDP(net)\n    {FREEZING}",
    ],
)
def test_what_has_not_run_is_not_resharded(after: str) -> None:
    assert "reshard" not in boxed(after=after)


def test_what_is_sharded_further_down_is_not_resharded() -> None:
    assert "reshard" not in boxed(before=f"self.net = net\n{FREEZING}")


@pytest.mark.parametrize(
    "after",
    [
        f"self.net(torch.zeros(2))\n{FREEZING}",
        f"evaluate(self)\n{FREEZING}",
        f"evaluate([self.net])\n{FREEZING}",
        f"self.warm_up()\n{FREEZING}",
        f"for i in range(2):\n    {FREEZING}\n    self.net(torch.zeros(2))",
    ],
)
def test_what_may_have_run_is_resharded(after: str) -> None:
    assert "self.net.reshard()" in boxed(after=after)
