"""Functions that are called through ``functools.partial``, and parameters that are asserted."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, rewritten

SHARDING = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def shard_model(model, device_id, strategy=None, sync=True):
    return FSDP(model, device_id=device_id, sharding_strategy=strategy, sync_module_states=sync)
"""
TRAIN = """\
from functools import partial

import torch
from sharding import shard_model
from torch.distributed.fsdp import ShardingStrategy


class Loader:
    def __init__(self, shard):
        self.shard = shard

    def load(self, net):
        return self.shard(net, sync=False)


def train(net, batches):
    MADE
    for batch in batches:
        model(batch).sum().backward()
        model.clip_grad_norm_(1.0)
"""


@pytest.mark.parametrize(
    "made",
    [
        "shard = partial(shard_model, device_id=0)\n    model = shard(net)",
        "shard = partial(shard_model, device_id=0)\n    model = Loader(shard).load(net)",
        "model = Loader(shard=partial(shard_model, device_id=0)).load(net)",
        "model = partial(shard_model, net)(0)",
    ],
)
def test_what_a_partial_of_a_function_gives_is_followed(made: str) -> None:
    _, after = migrate({"sharding.py": SHARDING, "train.py": TRAIN.replace("MADE", made)})
    assert "model.clip_grad_norm_" not in after["train.py"]
    assert "TODO" not in after["train.py"]


OVER = "shard = partial(shard_model, sync=False)\n    more"


@pytest.mark.parametrize(
    ("made", "syncs"),
    [
        ("shard = partial(shard_model, device_id=0, sync=False)\n    model = shard(net)", False),
        ("shard = partial(shard_model, device_id=0)\n    model = Loader(shard).load(net)", False),
        ("shard = partial(shard_model, device_id=0)\n    model = shard(net)", True),
        ("shard = partial(shard_model, sync=False)\n    model = shard(net, 0, sync=True)", True),
        (f"{OVER} = dict(sync=True)\n    model = shard(net, 0, **more)", True),
        (f"{OVER} = read()\n    model = shard(net, 0, **more)", True),
        (f"{OVER} = dict(strategy=None)\n    model = shard(net, 0, **more)", False),
    ],
)
def test_a_parameter_is_what_a_partial_or_its_call_gives_it(made: str, *, syncs: bool) -> None:
    _, after = migrate({"sharding.py": SHARDING, "train.py": TRAIN.replace("MADE", made)})
    assert ("set_model_state_dict" in after["sharding.py"]) is syncs


ASSERTED = """\
from torch.distributed.fsdp import FullStateDictConfig
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType


class Trainer:
    def __init__(self, net, kind=StateDictType.FULL_STATE_DICT):
        FIRST
        self.kind = kind
        self.config = FullStateDictConfig(rank0_only=True, offload_to_cpu=True)
        self.model = FSDP(net)

    def state(self):
        with FSDP.state_dict_type(self.model, self.kind, self.config):
            return self.model.state_dict()
"""
ONLY = "assert kind == StateDictType.FULL_STATE_DICT, 'not implemented'"


def test_what_a_function_insists_on_is_all_that_a_parameter_is() -> None:
    text = rewritten(ASSERTED.replace("FIRST", ONLY))
    assert "full_state_dict=True" in text
    assert "state_dict_type" not in text


@pytest.mark.parametrize(
    "first",
    [
        "pass",
        f"kind = choose(kind)\n        {ONLY}",
        "assert kind != StateDictType.FULL_STATE_DICT",
        "if net:\n            " + ONLY,
    ],
)
def test_a_parameter_that_may_be_another_is_any(first: str) -> None:
    text = rewritten(ASSERTED.replace("FIRST", first))
    assert 'full_state_dict=self.kind.name == "FULL_STATE_DICT"' in text


NESTED = """\
from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from nets import plain


def train(net):
    base = partial(CALLED, device_id=0)
    wrap = partial(base, use_orig_params=True)
    BETWEEN
    model = wrap(net)
    model.clip_grad_norm_(1.0)
    return model
"""
BETWEEN = {
    "two": "pass",
    "three": "wrap = partial(wrap, cpu_offload=None)",
    "many": "for name in net.names:\n        wrap = partial(wrap, **{name: None})",
}


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_what_a_partial_of_a_partial_gives_is_a_model(between: str) -> None:
    after = rewritten(NESTED.replace("BETWEEN", between).replace("CALLED", "FSDP"))
    assert "base = partial(shard, device_id=0)" in after
    assert "clip_grad_norm_(model.parameters(), 1.0)" in after


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_what_a_partial_of_another_partial_gives_is_none(between: str) -> None:
    source = NESTED.replace("BETWEEN", between).replace("CALLED", "plain")
    assert "model.clip_grad_norm_(1.0)" in rewritten(source)
