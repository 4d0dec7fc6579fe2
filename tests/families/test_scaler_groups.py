"""Which ranks agree on overflows: ``ShardedGradScaler`` asked all of them, a ``GradScaler`` those
that share a model's shards."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

PROGRAM = """\
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


def build(net, groups, shards, replicas):
    model = FSDP(net{model})
    return model, ShardedGradScaler({scaler})
"""
HYBRID = ", sharding_strategy=ShardingStrategy.HYBRID_SHARD"


@pytest.mark.parametrize(
    ("model", "scaler", "outcome"),
    [
        ("", "", Outcome.REWRITTEN),
        ("", "process_group=None", Outcome.REWRITTEN),
        ("", "process_group=dist.group.WORLD", Outcome.REWRITTEN),
        (", process_group=None", "", Outcome.REWRITTEN),
        (", process_group=dist.group.WORLD", "", Outcome.REWRITTEN),
        (f", process_group=(shards, replicas){HYBRID}", "", Outcome.REWRITTEN),
        (", process_group=shards", "process_group=shards", Outcome.REWRITTEN),
        (", process_group=shards", "", Outcome.REVIEW),
        (", process_group=shards", "process_group=dist.group.WORLD", Outcome.REVIEW),
        (", process_group=groups[0]", "enabled=True", Outcome.REVIEW),
        ("", "process_group=shards", Outcome.REVIEW),
    ],
)
def test_who_agrees(model: str, scaler: str, outcome: Outcome) -> None:
    result, _ = migrate({"a.py": PROGRAM.format(model=model, scaler=scaler)})
    (found,) = [d for d in result.decisions if d.code == "FSDP405"]
    assert found.outcome is outcome
