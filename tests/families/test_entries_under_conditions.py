"""What FSDP2 has no use for goes from a dictionary that stays, also from under a condition."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, outcomes

PROGRAM = """\
import torch
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    ShardingStrategy,
)


def strategy(config):
    names = {"full": ShardingStrategy.FULL_SHARD, "grad": ShardingStrategy.SHARD_GRAD_OP}
    return names.get(config.strategy, ShardingStrategy.FULL_SHARD)


def precision(config):
    return MixedPrecision(param_dtype=getattr(torch, config.param_dtype))


def wrap(model, config):
    kwargs = {"sharding_strategy": strategy(config)}
    if config.low:
        kwargs["mixed_precision"] = precision(config)
SETTING
    if config.device is not None:
        kwargs["device_id"] = config.device
    return FSDP(model, **kwargs)
"""
SETTINGS = {
    "a condition": 'if config.limit:\n    kwargs["limit_all_gathers"] = True',
    "a condition that is called": 'if config.limit():\n    kwargs["limit_all_gathers"] = True',
    "lines above it": """\
if config.prefetch:
    modes = {"pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST}
    if config.prefetch in modes:
        kwargs["backward_prefetch"] = modes[config.prefetch]""",
    "an else": """\
if config.limit:
    kwargs["limit_all_gathers"] = True
else:
    kwargs["limit_all_gathers"] = False""",
    "an elif": """\
if config.quiet:
    print("quiet")
elif config.limit:
    kwargs["limit_all_gathers"] = False""",
    "other lines": """\
if config.limit:
    print("limited")
    kwargs["limit_all_gathers"] = True""",
}


def _migrated(setting: str) -> tuple[str, set[str]]:
    lines = "\n".join("    " + line for line in setting.splitlines())
    result, after = migrate({"train.py": PROGRAM.replace("SETTING", lines)})
    compile(after["train.py"], "train.py", "exec")
    return after["train.py"], {outcome.value for _, outcome in outcomes(result)}


@pytest.mark.parametrize("setting", SETTINGS)
def test_it_goes(setting: str) -> None:
    text, found = _migrated(SETTINGS[setting])
    assert "fully_shard(" in text
    assert "left" not in found
    assert 'kwargs["mixed_precision"] = precision(config)' in text
    assert "limit_all_gathers" not in text
    assert 'kwargs["backward_prefetch"]' not in text


@pytest.mark.parametrize("setting", ["a condition", "an else"])
def test_an_if_for_nothing_else_goes_with_it(setting: str) -> None:
    text, _ = _migrated(SETTINGS[setting])
    assert "config.limit" not in text


@pytest.mark.parametrize("setting", ["a condition that is called", "an elif", "other lines"])
def test_what_a_condition_does_stays(setting: str) -> None:
    text, _ = _migrated(SETTINGS[setting])
    assert "config.limit" in text


def test_what_something_is_called_for_stays() -> None:
    text, found = _migrated('if config.limit:\n    kwargs["limit_all_gathers"] = config.ask()')
    assert "config.ask()" in text
    assert "left" not in found
