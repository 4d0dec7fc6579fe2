"""Conversions of an optimizer's state that no load follows, and settings that are no models."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, unmarked

HEAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy


"""
SPARE = (
    f"{HEAD}def resume(net, path):\n    model = FSDP(net)\n    state = torch.load(path)\n"
    "    sharded = FSDP.scatter_full_optim_state_dict({given}, model)\n{after}"
)


def test_a_conversion_whose_result_nothing_reads_goes() -> None:
    result, after = migrate({"example.py": SPARE.format(given="state", after="    print(path)\n")})
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN, Outcome.REVIEW}
    assert "scatter" not in after["example.py"]
    assert "Nothing loaded what FSDP1 made of the state here" in after["example.py"]
    assert not migrate(after)[0].changes


@pytest.mark.parametrize("given", ["torch.load(path)", "state.pop('optimizer')"])
def test_what_does_more_stays(given: str) -> None:
    result, after = migrate({"example.py": SPARE.format(given=given, after="")})
    assert Outcome.LEFT in {d.outcome for d in result.decisions}
    assert f"sharded = FSDP.scatter_full_optim_state_dict({given}, model)" in after["example.py"]


@pytest.mark.parametrize(
    "more", ["    return locals()\n", "    return lambda: sharded\n", "    global sharded\n"]
)
def test_what_may_be_read_stays(more: str) -> None:
    source = SPARE.format(given="state", after=more)
    if "global" in more:
        source = SPARE.format(given="state", after="").replace("    model", f"{more}    model", 1)
    _, after = migrate({"example.py": source})
    assert "FSDP.scatter_full_optim_state_dict(state, model)" in after["example.py"]


def test_an_attribute_is_read_elsewhere() -> None:
    source = SPARE.format(given="state", after="").replace("sharded =", "net.sharded =")
    _, after = migrate({"example.py": source})
    assert "net.sharded = FSDP.scatter_full_optim_state_dict(state, model)" in after["example.py"]


SETTINGS = (
    f"{HEAD}def train(model, config):\n"
    "    if {of}.sharding_strategy == ShardingStrategy.NO_SHARD:\n"
    "        print('whole')\n    model(1).backward()\n\n\n"
    "def main(net, settings):\n    chosen = settings.fsdp\n"
    "    model = FSDP(net, sharding_strategy=chosen.sharding_strategy)\n    train(model, chosen)\n"
)


def test_an_object_that_a_model_is_made_with_is_no_model() -> None:
    source = SETTINGS.format(of="config")
    result, after = migrate({"example.py": source})
    assert all(d.outcome is not Outcome.LEFT for d in result.decisions)
    assert "if config.sharding_strategy == ShardingStrategy.NO_SHARD:" in after["example.py"]
    assert not migrate(after)[0].changes


def test_a_model_and_what_nothing_is_known_about_are_asked_about_still() -> None:
    result, after = migrate({"example.py": SETTINGS.format(of="model")})
    left = [d for d in result.decisions if d.outcome is Outcome.LEFT]
    assert [str(d.site.construct) for d in left] == ["FullyShardedDataParallel.sharding_strategy"]
    other = SETTINGS.format(of="config").replace("train(model, chosen)", "train(model, net.other)")
    result, after = migrate({"example.py": other})
    assert Outcome.LEFT in {d.outcome for d in result.decisions}
    assert unmarked(after["example.py"]).count("config.sharding_strategy") == 1
