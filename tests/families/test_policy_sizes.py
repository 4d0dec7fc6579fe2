"""A policy that only counts parameters becomes their number, unless something else needs it."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, outcomes

HEAD = """\
import functools

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

HALF = MixedPrecision(param_dtype=torch.bfloat16)


class Block(nn.Module):
    def forward(self, x):
        return x


"""
POLICY = "functools.partial(size_based_auto_wrap_policy, min_num_params=4)"
NORM = "class Norm(nn.BatchNorm1d):\n    pass\n\n\n"
BUILD = f"""\
def build(net):
    policy = {POLICY}
    return FSDP(net, auto_wrap_policy=policy)
"""


def written(source: str) -> str:
    result, after = migrate({"train.py": HEAD + source})
    assert {outcome.value for _, outcome in outcomes(result)} <= {"rewritten", "review"}
    return after["train.py"]


COUNTED = {
    "a local name": (BUILD, "units_by_size(net, 4)"),
    "at the call": (
        BUILD.replace(f"    policy = {POLICY}\n", "").replace("=policy", f"={POLICY}"),
        "units_by_size(net, 4)",
    ),
    "a number that is a name": (
        BUILD.replace("params=4", "params=least").replace("(net)", "(net, least)"),
        "    for module in units_by_size(net, least)",
    ),
    "a number that is another at the call": (
        BUILD.replace("params=4", "params=least")
        .replace("(net)", "(net, least)")
        .replace("    return", "    least = 1\n    return"),
        "policy = least\n    least = 1\n    for module in units_by_size(net, policy)",
    ),
    "a name of the file": (
        f"net = Block()\npolicy = {POLICY}\nmodel = FSDP(net, auto_wrap_policy=policy)\n",
        "net = Block()\nfor module in units_by_size(net, 4):\n    fully_shard(module)",
    ),
    "a name of the file that is read again": (
        f"net = Block()\npolicy = {POLICY}\nmodel = FSDP(net, auto_wrap_policy=policy)\n"
        "other = FSDP(Block(), auto_wrap_policy=policy)\n",
        "policy = 4\nfor module in units_by_size(net, policy)",
    ),
    "by nothing": (
        BUILD.replace(f"    policy = {POLICY}\n", "").replace("=policy", f"={POLICY[18:45]}"),
        "units_by_size(net, 100_000_000)",
    ),
    "in one case": (
        BUILD.replace(POLICY, f"{POLICY} if big else None").replace("(net)", "(net, big)"),
        "policy = 4 if big else None\n    if policy is not None:\n"
        "        for module in units_by_size(net, policy)",
    ),
    "for another function": (
        f"def policy():\n    return {POLICY}\n\n\n"
        + BUILD.replace(f"    policy = {POLICY}\n", "").replace("=policy", "=policy()"),
        "def policy():\n    return 4\n",
    ),
    "a call instead of a partial": (
        BUILD.replace(
            "functools.partial(size_based_auto_wrap_policy, ", "size_based_auto_wrap_policy("
        ),
        "units_by_size(net, 4)",
    ),
}
WALKED = {
    "its number is asked for": BUILD.replace(
        "    return", "    print(policy.keywords)\n    return"
    ),
    "it is called": BUILD.replace("    return", "    policy(net, True, 7)\n    return"),
    "checkpointing takes it": BUILD.replace(
        "return FSDP(net, auto_wrap_policy=policy)",
        "model = FSDP(net, auto_wrap_policy=policy)\n"
        "    apply_activation_checkpointing(model, auto_wrap_policy=policy)\n    return model",
    ),
    "modules are ignored": BUILD.replace("=policy", "=policy, ignored_modules=[net.head]"),
    "leaves are named": BUILD.replace("params=4", "params=4, force_leaf_modules={Block}"),
    "norms are units too": NORM + BUILD.replace("=policy", "=policy, mixed_precision=HALF"),
    "norms are, in another model": NORM
    + BUILD.replace("build(net)", "build(net, second)").replace(
        "    return FSDP",
        "    other = FSDP(second, auto_wrap_policy=policy, mixed_precision=HALF)\n"
        "    return other, FSDP",
    ),
    "checkpointing takes one of classes": BUILD.replace(
        POLICY, "functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})"
    ).replace(
        "return FSDP(net, auto_wrap_policy=policy)",
        "model = FSDP(net, auto_wrap_policy=policy)\n"
        "    apply_activation_checkpointing(model, auto_wrap_policy=policy)\n    return model",
    ),
}


@pytest.mark.parametrize("case", COUNTED)
def test_the_number_is_enough(case: str) -> None:
    source, expected = COUNTED[case]
    text = written(source)
    assert expected in text
    assert "shard_by_policy" not in text


def test_a_name_that_another_file_reads_stays() -> None:
    script = f"net = Block()\npolicy = {POLICY}\nmodel = FSDP(net, auto_wrap_policy=policy)\n"
    other = "from train import policy\n\nprint(policy)\n"
    _, after = migrate({"train.py": HEAD + script, "other.py": other})
    assert "policy = " in after["train.py"]


@pytest.mark.parametrize("case", WALKED)
def test_the_policy_stays(case: str) -> None:
    text = written(WALKED[case])
    assert "shard_by_policy(" in text
    assert "units_by_size" not in text
    assert "functools.partial(" in text
