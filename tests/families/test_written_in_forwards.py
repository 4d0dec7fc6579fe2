"""Parameters that a forward writes to."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

SOURCE = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def update(q, k):
    for (_, a), (_, b) in zip(q.named_parameters(), k.named_parameters()):
        {helped}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(4, 4)
        self.k = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("seen", torch.ones(4))

    @torch.no_grad()
    def started(self):
        {other}

    @torch.no_grad()
    def forward(self, x):
        update(self.q, self.k)
        for a, b in zip(self.q.parameters(), self.k.parameters()):
            {run}
        return self.q(x) * self.scale


net = Net()
model = FSDP(net, sharding_strategy=ShardingStrategy.{strategy})
"""
DATA = "b.data = 0.9 * b.data + 0.1 * a.data"
COPIED = "b.data.copy_(0.9 * b.data + 0.1 * a.data)"
LOST = "freed, as it was in FSDP1"


def after(
    run: str = "pass", helped: str = "pass", other: str = "pass", strategy: str = "FULL_SHARD"
) -> str:
    source = SOURCE.format(run=run, helped=helped, other=other, strategy=strategy)
    return " ".join(migrate({"train.py": source})[1]["train.py"].replace("#", " ").split())


def test_what_is_assigned_is_copied_in_place_and_marked() -> None:
    assert COPIED in after(DATA)
    assert LOST in after(DATA)


def test_in_a_function_that_the_forward_calls() -> None:
    assert COPIED in after(helped=DATA)


@pytest.mark.parametrize("written", ["self.scale", "self.k.bias"])
def test_one_parameter(written: str) -> None:
    assert f"{written}.data.copy_(self.q.bias + 1)" in after(f"{written}.data = self.q.bias + 1")


@pytest.mark.parametrize(
    "hidden", ["(lambda net: net)(b)", "[b][0]", "(b or a)", "(b if x is not None else a)"]
)
def test_one_that_is_hidden(hidden: str) -> None:
    text = after(f"{hidden}.data = b.data * 0.9")
    assert f"{hidden}.data.copy_(b.data * 0.9)" in text
    assert LOST in text


@pytest.mark.parametrize(
    "run", ["b.data.mul_(0.9).add_(a.data)", "b.copy_(a)", "self.scale.fill_(2)"]
)
def test_what_is_written_in_place_is_marked_under_no_shard_alone(run: str) -> None:
    assert "kept what a forward writes" in after(run, strategy="NO_SHARD")
    assert "TODO" not in after(run)


def test_what_changes_its_dtype_is_left() -> None:
    assert "b.data = b.data.half()" in after("b.data = b.data.half()")
    assert "TODO" in after("b.data = b.data.half()")


@pytest.mark.parametrize(
    "run", ["self.seen.data = a.sum() + self.seen", "x.data = x + 1", "[x][0].data = x + 1"]
)
def test_what_is_no_parameter_is_not_touched(run: str) -> None:
    text = after(run)
    assert run in text
    assert "TODO" not in text


def test_what_no_forward_runs_is_not_touched() -> None:
    assert "TODO" not in after(other="self.k.bias.data = self.q.bias + 1")
