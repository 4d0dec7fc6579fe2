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


TOP = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

whole = nn.Linear(2, 2)


def same(it):
    return it


def other(it):
    return nn.Linear(2, 2)


def double(net):
    for p in net.parameters():
        p.data = p.data * 2


def look(net):
    return (lambda: net)().state_dict()


"""
MAIN = "def main(flag):\n    net = nn.Linear(2, 2)\n    "
MODEL = MAIN + "model = FSDP(net, use_orig_params=True)\n    "
BUILD = MAIN + "build = lambda: FSDP(net, use_orig_params=True)\n    "
SHARD = "def shard():\n    return FSDP(whole, use_orig_params=True)\n\n\ndef main():\n    "
HIDDEN = {
    "a lambda wraps": (
        MAIN + "model = (lambda: FSDP(net))()\n    print(net.state_dict())",
        "print",
    ),
    "a lambda with a name": (BUILD + "model = build()\n    print(net.state_dict())", "print"),
    "a function inside": (
        MAIN + "def build():\n        return FSDP(net)\n    model = build()\n"
        "    print(net.state_dict())",
        "print",
    ),
    "another function wraps the file's": (
        SHARD + "shard()\n    print(whole.state_dict())",
        "print",
    ),
    "or": (MODEL + "print((net or flag).state_dict())", "print"),
    "a choice": (MODEL + "print((net if flag else None).state_dict())", "print"),
    "a function": (MODEL + "print(same(net).state_dict())", "print"),
    "a lambda": (MODEL + "print((lambda: net)().state_dict())", "print"),
    "a lambda of a parameter": (MODEL + "look(net)", "return (lambda"),
    "what a function gives, handed on": (MODEL + "double(same(net))", "    p.data"),
    "what a lambda gives, handed on": (MODEL + "double((lambda: net)())", "    p.data"),
    "a choice, handed on": (MODEL + "double(net or flag)", "    p.data"),
}


def _said(body: str, line: str) -> bool:
    program = f"{TOP}{body}\n"
    number = program[: program.index(line)].count("\n") + 1
    result, _ = migrate({"example.py": program})
    told = [each.line for each in result.not_followed]
    return number in {*told, *(d.site.statement.lineno for d in result.decisions)}


@pytest.mark.parametrize(("body", "line"), HIDDEN.values(), ids=HIDDEN)
def test_the_name_stands_behind_something(body: str, line: str) -> None:
    assert _said(body, line)


PLAIN = {
    "before the lambda is called": (BUILD + "print(net.state_dict())\n    build()", "print"),
    "another's name": (
        "net = nn.Linear(2, 2)\n\n\ndef shard(net):\n    return FSDP(net)\n\n\ndef main():\n"
        "    model = shard(nn.Linear(4, 4))\n    print(net.state_dict())",
        "print",
    ),
    "the file's name is set anew": (
        SHARD + "shard()\n    print(whole.state_dict())\n\n\nwhole = nn.Linear(4, 4)",
        "print",
    ),
    "what a function makes anew": (MODEL + "print(other(net).state_dict())", "print"),
    "what a function makes anew, handed on": (MODEL + "double(other(net))", "    p.data"),
    "a choice of others": (MODEL + "print((same(flag) or whole).state_dict())", "print"),
}


@pytest.mark.parametrize(("body", "line"), PLAIN.values(), ids=PLAIN)
def test_something_else_stands_there(body: str, line: str) -> None:
    assert not _said(body, line)


TRAINER = """\
class Trainer:
    def __init__(self):
        self.net = nn.Linear(2, 2)
        {init}

    def prepare(self):
        {above}
        self.model = FSDP(self.net, use_orig_params=True)
        {below}

    def look(self):
        {look}


class Special(Trainer):
    def see(self):
        {see}


trainer = Trainer()
trainer.prepare()
"""
ASKED = "print(self.net.state_dict())"


@pytest.mark.parametrize(
    ("places", "is_said"),
    [
        ({"below": ASKED}, True),
        ({"look": ASKED}, True),
        ({"look": ASKED, "below": "self.look()"}, True),
        ({"init": f"self.prepare()\n        {ASKED}"}, True),
        ({"see": ASKED}, True),
        ({"look": "print([p for p in self.net.parameters() if p.ndim < 2])"}, True),
        ({"init": ASKED}, False),
        ({"above": ASKED}, False),
        ({"look": ASKED, "above": "self.look()"}, False),
        ({"look": ASKED, "init": "self.look()"}, False),
        ({"look": f"self.net = nn.Linear(2, 2); {ASKED}"}, False),
    ],
)
def test_a_method_wraps_an_attribute(places: dict[str, str], is_said: bool) -> None:
    body = TRAINER.format_map(
        {**dict.fromkeys(("init", "above", "below", "look", "see"), "pass"), **places}
    )
    assert _said(body, "print") is is_said
