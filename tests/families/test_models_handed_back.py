"""A function that hands back the model that it is given shards nothing: ``unwrap(model)``."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def unwrap(model):
    return model.module if hasattr(model, "module") else model


def trainable_params(model):
    return [p for p in unwrap(model).parameters() if p.requires_grad]


def shard(model):
    return FSDP(model, use_orig_params=True)


def shard_if_plain(model):
    return model if isinstance(model, FSDP) else shard(model)


def main(net, args, batches):
    sharded = bool(args.sharded)
    if sharded:
        engine = shard(net)
    else:
        engine = DDP(net)
    if sharded:
        params = list(engine.parameters())
    else:
        params = trainable_params(engine)
    optimizer = torch.optim.AdamW(params)
    {behind}
    for batch in batches:
        engine(batch).sum().backward()
        optimizer.step()
        print(len(params))
"""
HANDED_BACK = ("watch(unwrap(engine))", "inner = unwrap(engine)", "engine = unwrap(engine)")
SHARDED = ("engine = shard(engine)", "engine = shard_if_plain(engine)")


@pytest.mark.parametrize("behind", [*HANDED_BACK, *SHARDED])
def test_what_is_collected_where_nothing_is_sharded_is_not_early(behind: str) -> None:
    """A guard stopped every training with DDP."""
    result, after = migrate({"train.py": PROGRAM.format(behind=behind)})
    early = [d for d in result.decisions if d.code == "FSDP403"]
    assert bool(early) is (behind in SHARDED)
    assert ("FSDP403" in after["train.py"]) is any(d.outcome.value == "left" for d in early)
    if behind in HANDED_BACK:
        assert "raise NotImplementedError" not in after["train.py"]
