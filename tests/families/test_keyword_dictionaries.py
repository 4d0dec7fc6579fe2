"""Arguments in a dictionary are written out only where the call would be given the same."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, outcomes

HEAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


"""
PLAIN = """\
def build(net, cfg):
    params = dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, ignored_states=cfg.frozen)
    return FSDP(net, **params)
"""
OTHERWISE = {
    "an attribute that is set in between": PLAIN.replace(
        "    return", "    cfg.frozen = list(net.parameters())\n    return"
    ),
    "a name that is bound in between": PLAIN.replace("cfg.frozen)", "cfg)").replace(
        "    return", "    cfg = []\n    return"
    ),
    "a change by a method": PLAIN.replace("    return", "    params.update(cfg.more)\n    return"),
    "a change behind an alias": PLAIN.replace(
        "    return", "    other = params\n    other['use_orig_params'] = True\n    return"
    ),
    "a change in a loop": PLAIN.replace(
        "    return", "    for name in cfg:\n        params[name] = cfg[name]\n    return"
    ),
    "a call that it is handed to": PLAIN.replace("    return", "    cfg.check(params)\n    return"),
    "another reader": PLAIN.replace("    return", "    print(params)\n    return"),
    "a second use": f"{PLAIN[:-1]}, cfg.other(**params)\n",
    "a second value": PLAIN.replace("    return", "    params = cfg.params or params\n    return"),
    "a copy of another": PLAIN.replace("dict(", "dict(cfg.defaults, "),
    "another dictionary in it": PLAIN.replace("dict(", "dict(**cfg.defaults, "),
    "what is no argument": PLAIN.replace("dict(", "dict(strategy=1, "),
    "a reader inside of a function": PLAIN.replace(
        "    return", "    def later():\n        params.clear()\n\n    later()\n    return"
    ),
}


def test_what_is_only_for_the_call_is_written_out() -> None:
    result, after = migrate({"train.py": HEAD + PLAIN})
    assert list(after) == ["train.py"]
    assert "fully_shard(net, **params)" in after["train.py"]
    assert "reshard_after_forward=False" in after["train.py"]
    assert all(outcome.value != "left" for _, outcome in outcomes(result))


@pytest.mark.parametrize("way", OTHERWISE)
def test_what_may_be_another_dictionary_is_for_the_running_program(way: str) -> None:
    result, after = migrate({"train.py": HEAD + OTHERWISE[way]})
    text = after["train.py"]
    left = any(outcome.value == "left" for _, outcome in outcomes(result))
    assert "fully_shard(" not in text
    assert left or "shard(net, **params)" in text
