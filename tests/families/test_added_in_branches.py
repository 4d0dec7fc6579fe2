"""What a branch adds to a dictionary is for the branch's own calls, or for the running program."""

from __future__ import annotations

import pytest

from tests.families.test_keyword_dictionaries import HEAD, is_for_the_running_program
from tests.helpers.migrating import migrate, outcomes

ADDED = """\
def build(net, cfg):
    params = dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
    if cfg.frozen:
        params["ignored_states"] = cfg.frozen
        net = FSDP(net, **params)
    else:
        net = FSDP(net, **params)
    return net
"""
OTHERWISE = {
    "a loop that comes back to the dictionary": """\
def build(nets, cfg):
    params = dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
    for net in nets:
        if cfg.frozen(net):
            params["ignored_states"] = cfg.frozen(net)
            net = FSDP(net, **params)
        else:
            net = FSDP(net, **params)
""",
    "a branch that adds what is not written": """\
def build(net, cfg):
    params = dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
    if cfg.frozen:
        params.update(cfg.more)
        net = FSDP(net, **params)
    else:
        net = FSDP(net, **params)
    return net
""",
    "a call in a function inside of the other branch": """\
def build(net, cfg):
    params = dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
    if cfg.late:
        def later():
            return FSDP(net, **params)
    else:
        params["ignored_states"] = cfg.frozen
        net = FSDP(net, **params)
        return net
    return later()
""",
}


@pytest.mark.parametrize("way", OTHERWISE)
def test_what_a_branch_adds_for_more_than_its_own_call_is_for_the_running_program(
    way: str,
) -> None:
    is_for_the_running_program(OTHERWISE[way])


def test_what_a_branch_adds_is_for_its_own_call() -> None:
    result, after = migrate({"train.py": HEAD + ADDED})
    text = after["train.py"]
    assert list(after) == ["train.py"]
    assert text.count("fully_shard(net, ") == 2
    assert text.count('params["ignored_params"] = ') == 1
    assert all(outcome.value != "left" for _, outcome in outcomes(result))
