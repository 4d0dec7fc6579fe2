"""States that are changed in place are copies where they would be the parameters."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import (
    FullyShardedDataParallel as FSDP,
    ShardingStrategy,
    StateDictType,
)


def zero(values):
    for value in values.values():
        value.zero_()


def asked(model):
    return model.state_dict()


def run(net):
    model = FSDP(net, sharding_strategy=ShardingStrategy.STRATEGY)
    FSDP.set_state_dict_type(model, StateDictType.KIND)
    state = asked(model)
    USE
"""
WRITTEN = {
    "in a loop": "for value in state.values():\n        value.fill_(1.0)",
    "by items": "for name, value in list(state.items()):\n        value.data.mul_(2)",
    "under a key": "state['w'].mul_(2)",
    "added to": "state['w'] += 1",
    "an element": "state['w'][0] = 0",
    "under a name": "first = state['w']\n    first[0] = 0",
    "by a function": "zero(state)",
    "by torch's": "torch.nn.init.zeros_(state['w'])",
}
READ = {
    "another tensor": "state['w'] = state['w'] * 2",
    "of another name": "for value in state.values():\n        twice = value * 2\n    twice.mul_(2)",
    "the dictionary": "state.pop('w')\n    state.update(w=torch.ones(2))",
    "before": "torch.save(state, 'a')\n    state = {'w': torch.ones(2)}\n    state['w'].mul_(2)",
}


def _is_copied(use: str, strategy: str = "NO_SHARD", kind: str = "FULL_STATE_DICT") -> bool:
    program = PROGRAM.replace("USE", use).replace("STRATEGY", strategy).replace("KIND", kind)
    return "deepcopy(get_model_state_dict(" in rewritten(program)


@pytest.mark.parametrize("use", WRITTEN.values(), ids=WRITTEN)
def test_what_is_written_into_is_a_copy(use: str) -> None:
    assert _is_copied(use)
    assert _is_copied(use, "FULL_SHARD", "SHARDED_STATE_DICT")
    assert not _is_copied(use, "FULL_SHARD")


@pytest.mark.parametrize("use", READ.values(), ids=READ)
def test_what_is_read_is_the_state(use: str) -> None:
    assert not _is_copied(use)


def test_what_is_loaded_into_a_replicated_models_state() -> None:
    assert _is_copied("dcp.load(state)")
    assert _is_copied("dcp.load({'model': state})")
    assert not _is_copied("dcp.load(state)\n    model.load_state_dict(state)")
    assert not _is_copied("dcp.load(state)", "FULL_SHARD")
