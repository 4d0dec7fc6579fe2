"""Elements and bytes of parameters, in every way that torch counts them."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def sizes(given):
    return [EACH for name, p in given]


model = FSDP(net, use_orig_params=True)
"""
DIRECT = "print([EACH for name, p in model.named_parameters()])\n"
HANDED_ON = "print(sizes(model.named_parameters()))\n"
COUNTS = ("p.numel()", "p.nelement()", "p.grad.numel()", "p.shape.numel()", "p.data.size().numel()")
BYTES = (
    *("p.element_size() * p.nelement()", "p.nbytes", "p.grad.nbytes", "p.data.storage().nbytes()"),
    *("p.shape.numel() * p.element_size()", "p.untyped_storage().nbytes()"),
)
NEITHER = ("p.element_size() == 2", "rows.numel()", "p.dtype.itemsize")


def found(each: str, use: str, *, head: str = HEAD) -> list[tuple[Outcome, str]]:
    text = (head + use).replace("EACH", each)
    result, _ = migrate({"example.py": text})
    return [(d.outcome, d.help) for d in result.decisions if d.code == "FSDP408"]


@pytest.mark.parametrize("each", COUNTS)
def test_a_count_is_marked_as_such(each: str) -> None:
    [(outcome, why)] = found(each, DIRECT)
    assert outcome is Outcome.REVIEW
    assert "numel() is that of the whole parameter" in why


@pytest.mark.parametrize("use", [DIRECT, HANDED_ON])
@pytest.mark.parametrize("each", BYTES)
def test_bytes_are_marked_wherever_the_parameters_get(each: str, use: str) -> None:
    [(outcome, why)] = found(each, use)
    assert outcome is Outcome.REVIEW
    assert "those of p.to_local()" in why


@pytest.mark.parametrize("each", NEITHER)
def test_what_is_neither_is_not(each: str) -> None:
    assert found(each, DIRECT) == []


@pytest.mark.parametrize("each", BYTES)
def test_bytes_of_a_plain_model_are_not(each: str) -> None:
    plain = "plain = nn.Linear(2, 2)\n"
    assert found(each, plain + HANDED_ON.replace("model.", "plain.")) == []


@pytest.mark.parametrize("each", BYTES)
def test_bytes_of_what_every_rank_has_are_not(each: str) -> None:
    head = HEAD.replace("FSDP(net, ", "FSDP(net, sharding_strategy=ShardingStrategy.NO_SHARD, ")
    head = head.replace("import Fully", "import ShardingStrategy, Fully")
    assert all(outcome is Outcome.REWRITTEN for outcome, _ in found(each, DIRECT, head=head))
