"""Parameters that an object keeps before another function wraps their model."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.model import Outcome
from tests.helpers.migrating import migrate

PROGRAM = """\
import elsewhere
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        return self.head(self.body(x))

    def configure(self, rate):
        return torch.optim.SGD(self.parameters(), lr=rate)

    def tie(self):
        self.head.weight = self.body.weight


class Trainer:
    def __init__(self):
        self.net = net = Net()
        {kept}

    def shard(self):
        self.net = FSDP(self.net, use_orig_params=True)

    def step(self, batch):
        self.net(batch).sum().backward()
        {used}
"""
KEPT = [
    "self.kept = list(net.parameters())",
    "self.kept = dict(self.net.named_parameters())",
    "self.kept = net.head.weight",
    "self.weight = net.head.weight",
    "self.bias = self.net.head.bias",
    "weight = net.head.weight; self.weight = weight",
    "kept = [p for p in net.parameters()]; self.kept = kept",
    "self.kept = net.configure(0.1)",
    "made = self.net.configure(0.1); self.kept = made",
]
USED = "print(self.kept, self.weight, self.bias)"
NOT_KEPT = [
    "weight = net.body.weight; net.head.weight = weight",
    "net.head.bias = net.body.bias",
    "self.kept = sum(p.numel() for p in net.parameters())",
    "self.kept = net.head.weight.shape",
    "self.kept = nn.Linear(4, 4).weight",
    "net.head.weight = net.body.weight; self.kept = 0",
]


def left(program: str) -> list[str]:
    result, _ = migrate({"train.py": program})
    return [d.code for d in result.decisions if d.outcome is Outcome.LEFT]


@pytest.mark.parametrize("kept", KEPT)
def test_is_left_with_its_model(kept: str) -> None:
    assert "FSDP403" in left(PROGRAM.format(kept=kept, used=USED))


@pytest.mark.parametrize("kept", KEPT[:6])
def test_is_nothing_where_nobody_reads_it(kept: str) -> None:
    assert not left(PROGRAM.format(kept=kept, used="print(batch)"))


@pytest.mark.parametrize("kept", NOT_KEPT)
def test_is_nothing_where_no_parameter_is_kept(kept: str) -> None:
    assert not left(PROGRAM.format(kept=kept, used=USED))


@pytest.mark.parametrize("way", ["max([net], key=id)", "elsewhere.passed(net)", "[net].pop()"])
@pytest.mark.parametrize(
    "kept",
    ["torch.optim.SGD({}.parameters())", "list({}.parameters())", "{}.configure(0.1)"],
)
def test_the_report_names_what_may_be_the_model(way: str, kept: str) -> None:
    hidden = f"hidden = {way}; self.kept = {kept.format('hidden')}"
    result, _ = migrate({"train.py": PROGRAM.format(kept=hidden, used="self.kept")})
    assert result.not_followed


FUNCTION = """\
def train(batch):
    net = Net()
    {before}
    model = FSDP(net, use_orig_params=True)
    {after}
    model(batch).sum().backward()
    {used}
"""
HEAD = PROGRAM.partition("class Trainer")[0]


@pytest.mark.parametrize("name", ["kept", "weight"])
def test_a_single_parameter_is_taken_behind_the_wrap(name: str) -> None:
    before, used = f"{name} = net.head.weight", f"print({name}.grad)"
    _, files = migrate({"train.py": HEAD + FUNCTION.format(before=before, after="", used=used)})
    text = files["train.py"]
    assert text.index("fully_shard(net)") < text.index(before)


@pytest.mark.parametrize("after", ["model.tie()", "model.head.weight = model.body.weight"])
def test_weights_that_are_tied_behind_the_wrap_are_left(after: str) -> None:
    assert "FSDP415" in left(HEAD + FUNCTION.format(before="net.tie()", after=after, used=""))


def test_weights_may_be_tied_before_the_wrap() -> None:
    before = "net.tie()\n    net.head.weight = net.body.weight"
    assert not left(HEAD + FUNCTION.format(before=before, after="", used=""))


HANDED = (
    HEAD
    + """\
def shard(net):
    return FSDP(net, use_orig_params=True)


class Run:
    def __init__(self, net, params):
        self.params = params
        self.net = FSDP(net, use_orig_params=True)

    def step(self, batch):
        self.net(batch).sum().backward()
        {kept}


def run(net, params, batch):
    {before}
    model = {wrap}
    model(batch).sum().backward()
    {used}


def main(batch):
    net = Net()
    {call}
"""
)
CLIPPED = "torch.nn.utils.clip_grad_value_(params, 0.1)"
CALLS = [
    "params = list(net.parameters()); run(net, params, batch)",
    "kept = list(net.parameters()); params = kept; run(net, params, batch)",
    "run(net, list(net.parameters()), batch)",
    "run(net, params=[p for p in net.parameters()], batch=batch)",
    "weight = net.head.weight; run(net, [weight], batch)",
    "run(net, net.head.weight, batch)",
]


@pytest.mark.parametrize("wrap", ["FSDP(net, use_orig_params=True)", "shard(net)"])
@pytest.mark.parametrize("call", CALLS)
def test_what_is_handed_to_the_function_that_wraps_is_left(call: str, wrap: str) -> None:
    program = HANDED.format(kept="", before="", wrap=wrap, used=CLIPPED, call=call)
    assert "FSDP403" in left(program)


@pytest.mark.parametrize("call", CALLS)
def test_what_is_handed_may_be_used_before_the_wrap(call: str) -> None:
    wrap = "FSDP(net, use_orig_params=True)"
    assert not left(HANDED.format(kept="", before=CLIPPED, wrap=wrap, used="", call=call))


@pytest.mark.parametrize("call", ["params = list(net.parameters()); Run(net, params).step(batch)"])
def test_what_is_handed_to_an_object_that_wraps_is_left(call: str) -> None:
    kept = CLIPPED.replace("params", "self.params")
    program = HANDED.format(kept=kept, before="", wrap="net", used="", call=call)
    assert "FSDP403" in left(program)
    assert not left(HANDED.format(kept="", before="", wrap="net", used="", call=call))


@pytest.mark.parametrize(
    "call",
    [
        "run(net, sum(p.numel() for p in net.parameters()), batch)",
        "run(net, net.head.weight.shape, batch)",
        "other = Net(); run(net, list(other.parameters()), batch)",
    ],
)
def test_what_is_handed_may_be_something_else(call: str) -> None:
    wrap = "FSDP(net, use_orig_params=True)"
    assert not left(HANDED.format(kept="", before="", wrap=wrap, used="print(params)", call=call))


def test_a_module_may_tie_its_own_weight() -> None:
    own = "self.weight = self.head.weight"
    program = HEAD.replace("self.head = nn.Linear(4, 4)", f"self.head = nn.Linear(4, 4); {own}")
    program = program.replace("self.head(self.body(x))", "self.head(self.body(x)) @ self.weight")
    assert not left(program + FUNCTION.format(before="", after="", used=""))
