"""Which constructors take the run-time form along with one that cannot be written out."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import functools

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

POLICY = ModuleWrapPolicy({nn.Linear})
HALF = MixedPrecision(param_dtype=torch.bfloat16)
STRATEGIES = {"full": ShardingStrategy.FULL_SHARD, "grads": ShardingStrategy.SHARD_GRAD_OP}


def initialise(module):
    module.to_empty(device="cuda", recurse=False)
    nn.init.normal_(module.weight)


def at_run_time(net, name):
    return FSDP(net, param_init_fn=initialise, LATE)


def written_out(net, name):
    return FSDP(net, EARLY)
"""
SHARED = {
    "a policy": "auto_wrap_policy=POLICY",
    "a precision": "mixed_precision=HALF",
    "a table": "sharding_strategy=STRATEGIES[name]",
}


def constructors(late: str, early: str) -> tuple[str, str]:
    """How the two are made in the migrated program."""
    _, after = migrate({"train.py": PROGRAM.replace("LATE", late).replace("EARLY", early)})
    first, second = after["train.py"].split("def at_run_time")[1].split("def written_out")
    return first, second


@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED)
def test_a_value_that_both_are_given_has_one_form(shared: str) -> None:
    first, second = constructors(shared, shared)
    assert " shard(net" in first
    assert " shard(net" in second


@pytest.mark.parametrize("late", SHARED.values(), ids=SHARED)
@pytest.mark.parametrize("early", SHARED.values(), ids=SHARED)
def test_one_that_shares_nothing_is_written_out(late: str, early: str) -> None:
    if late != early:
        first, second = constructors(late, early)
        assert " shard(net" in first
        assert "fully_shard(" in second


def test_what_may_be_given_anything_takes_all_along() -> None:
    first, second = constructors("**load()", SHARED["a policy"])
    assert " shard(net" in first
    assert " shard(net" in second


HANDED_ON = """

def wrap(*args, **kwargs):
    return FSDP(*args, **kwargs)


def main(net, name):
    return wrap(net, auto_wrap_policy=POLICY)
"""


def both(more: str, early: str) -> tuple[str, str]:
    """How a function's constructor is made that hands its arguments on, and the other one."""
    program = PROGRAM.replace("EARLY", early).replace("LATE", "") + more
    _, after = migrate({"train.py": program})
    first, second = after["train.py"].split("def written_out")[1].split("def wrap")
    return second, first


def test_a_function_hands_on_what_its_callers_give() -> None:
    for early in (SHARED["a precision"], SHARED["a table"]):
        first, second = both(HANDED_ON, early)
        assert " shard(*args, **kwargs)" in first
        assert "fully_shard(" in second
    first, second = both(HANDED_ON, SHARED["a policy"])
    assert " shard(*args, **kwargs)" in first
    assert " shard(net" in second


@pytest.mark.parametrize(
    "more",
    [
        HANDED_ON + "\n\nHELD = {'wrap': wrap}\n",
        HANDED_ON.replace("wrap(net, auto_wrap_policy=POLICY)", "net"),
        HANDED_ON.replace("auto_wrap_policy=POLICY", "**name"),
        HANDED_ON.replace("net, auto_wrap_policy=POLICY", "*name"),
        HANDED_ON.replace("    return FSDP", "    kwargs.update(more())\n    return FSDP"),
        HANDED_ON.replace("\ndef wrap", "\n@configured\ndef wrap"),
        HANDED_ON.replace("return FSDP(*args, **kwargs)", "return FSDP(*args, **kwargs, **more())"),
    ],
)
def test_what_is_not_known_of_its_callers_takes_all_along(more: str) -> None:
    _, second = both(more, SHARED["a precision"])
    assert " shard(net" in second


def test_a_function_that_an_import_renames_may_be_given_anything() -> None:
    program = PROGRAM.replace("EARLY", SHARED["a precision"]).replace("LATE", "") + HANDED_ON
    other = (
        "from train import HALF, wrap as w\n\n\ndef other(net):\n    return w(net, None, HALF)\n"
    )
    _, after = migrate({"train.py": program, "other.py": other})
    assert " shard(net" in after["train.py"].split("def written_out")[1]


@pytest.mark.parametrize(
    ("imports", "bound"),
    [
        ("from torch.distributed.fsdp.api import StateDictType", "StateDictType"),
        (
            "try:\n    from torch.distributed.fsdp.api import StateDictType\n"
            "except ImportError:\n    pass",
            "fsdp2_StateDictType",
        ),
    ],
)
def test_a_name_that_is_imported_twice(imports: str, bound: str) -> None:
    source = f"""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType
{imports}


def build(net, config):
    if config.kind == StateDictType.FULL_STATE_DICT:
        print("full")
    return FSDP(net)
"""
    result, after = migrate({"example.py": source})
    assert not result.problems
    assert f"config.kind == {bound}.FULL_STATE_DICT" in after["example.py"]


COMPARED = """\
from accelerate import Accelerator
from omegaconf import OmegaConf
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy


def build(net, config):
    return FSDP(net, sharding_strategy=config.strategy)


def stage(config, state):
    accelerator = Accelerator()
    plugin = accelerator.state.fsdp_plugin if config.fsdp else None
    return {test}
"""


@pytest.mark.parametrize(
    "test",
    [
        "plugin.sharding_strategy is ShardingStrategy.FULL_SHARD",
        "ShardingStrategy.FULL_SHARD == plugin.sharding_strategy",
        "plugin.sharding_strategy in (ShardingStrategy.FULL_SHARD, None)",
        "state.fsdp_plugin.sharding_strategy != ShardingStrategy.FULL_SHARD",
    ],
)
def test_what_another_library_goes_on_with_is_compared_with_torchs_own(test: str) -> None:
    source = COMPARED.format(test=test)
    result, after = migrate({"example.py": source})
    assert not result.problems
    assert "return fully_shard(" in after["example.py"]
    assert f"return {test}" in after["example.py"]
    assert "from torch.distributed.fsdp import ShardingStrategy" in after["example.py"]


@pytest.mark.parametrize(
    "test",
    [
        "config.strategy is ShardingStrategy.FULL_SHARD",
        "state == ShardingStrategy.NO_SHARD",
        # What is put into a container of settings is the project's.
        "OmegaConf.merge(config, state).strategy == ShardingStrategy.FULL_SHARD",
    ],
)
def test_what_the_project_compares_is_its_own(test: str) -> None:
    _, after = migrate({"example.py": COMPARED.format(test=test)})
    assert f"return {test}" in after["example.py"]
    assert "from torch.distributed.fsdp import ShardingStrategy" not in after["example.py"]
