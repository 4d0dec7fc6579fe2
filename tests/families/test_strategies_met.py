"""Which strategies no_sync may meet: under SHARD_GRAD_OP parameters stay gathered, as in FSDP1."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, worst

MADE = """\
import argparse
from contextlib import nullcontext

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

parser = argparse.ArgumentParser()
parser.add_argument("--mode")
parser.add_argument("--zero2", action="store_true")
args = parser.parse_args()
"""
TABLE = """{
    "fsdp": ShardingStrategy.FULL_SHARD,
    "sdp": ShardingStrategy.SHARD_GRAD_OP,
}[args.mode]"""
FLAG = "ShardingStrategy.SHARD_GRAD_OP if args.zero2 else ShardingStrategy.FULL_SHARD"
LOOP = """
    for index, batch in enumerate(batches):
        last = index + 1 == len(batches)
        with model.no_sync() if {test} else nullcontext():
            model(batch).sum().backward()
"""


def run(strategy: str, test: str, loop: str = LOOP) -> tuple[Outcome | None, str]:
    body = f"\n\ndef train(net, batches):\n    model = FSDP(net, sharding_strategy={strategy})"
    result, after = migrate({"example.py": MADE + body + loop.format(test=test)})
    assert not result.problems
    return worst(result), after["example.py"]


@pytest.mark.parametrize(
    ("strategy", "test"),
    [
        (TABLE, 'args.mode == "sdp" and not last'),
        (TABLE, 'args.mode in ("sdp", "hsdp") and not last'),
        (TABLE, 'args.mode != "fsdp" and not last'),
        (FLAG, "args.zero2 and not last"),
    ],
)
def test_where_settings_tell_they_stay_gathered(strategy: str, test: str) -> None:
    outcome, text = run(strategy, test)
    assert outcome is Outcome.REWRITTEN
    assert "        is_last = not (args." in text
    assert "model.set_requires_gradient_sync(is_last)" in text
    assert "model.set_reshard_after_backward(is_last)" in text


@pytest.mark.parametrize(
    ("strategy", "test"), [(TABLE, 'args.mode == "fsdp" and not last'), (FLAG, "not args.zero2")]
)
def test_full_shard_gives_its_memory_back(strategy: str, test: str) -> None:
    outcome, text = run(strategy, test)
    assert outcome is Outcome.REWRITTEN
    assert "set_reshard_after_backward" not in text


@pytest.mark.parametrize("strategy", [TABLE, FLAG])
@pytest.mark.parametrize("test", ["not last", "args.other and not last"])
def test_where_they_do_not_tell_it_is_marked(strategy: str, test: str) -> None:
    outcome, text = run(strategy, test)
    assert outcome is Outcome.REVIEW
    assert "model.set_reshard_after_backward(" not in text
    assert "With SHARD_GRAD_OP" in text


def test_a_branch_around_tells_as_well() -> None:
    loop = LOOP.replace("\n    for", '\n    if args.mode != "sdp":\n        return\n    for')
    outcome, text = run(TABLE, "not last", loop)
    assert outcome is Outcome.REWRITTEN
    assert "model.set_reshard_after_backward(last)" in text


def test_a_setting_that_changes_in_between_tells_nothing() -> None:
    loop = LOOP.replace("\n    for", '\n    args.mode = "sdp"\n    for')
    assert run(TABLE, 'args.mode == "sdp" and not last', loop)[0] is Outcome.REVIEW
