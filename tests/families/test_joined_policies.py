"""Policies in a list become predicates only where the list holds nothing else when it is asked."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, outcomes

PROGRAM = """\
import functools

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import (
    _or_policy,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)


def policy_of(net, config):
    policies = []
    if config.lora:
        policies.append(functools.partial(lambda_auto_wrap_policy, lambda_fn=config.picks))
    if config.classes:
        classes = set(config.classes)
        by_class = functools.partial(
            transformer_auto_wrap_policy, transformer_layer_cls=classes
        )
        policies.append(by_class)
    if not policies:
        return None
    return functools.partial(_or_policy, policies=policies)


def build(net, config):
    return FSDP(net, auto_wrap_policy=policy_of(net, config))
"""
APPEND = "        policies.append(by_class)\n"


def written(source: str) -> str:
    result, after = migrate({"train.py": source})
    assert {outcome.value for _, outcome in outcomes(result)} <= {"rewritten", "review"}
    return after["train.py"]


def test_a_list_that_conditions_fill() -> None:
    text = written(PROGRAM)
    assert "any(picks(module) for picks in policies)" in text
    assert "policies.append(config.picks)" in text
    assert "def by_class(module):\n            return isinstance(module, tuple(classes))" in text
    assert "shard_by_policy" not in text


WALKED = {
    "one counts": PROGRAM.replace(
        APPEND,
        f"{APPEND}    policies.append("
        "functools.partial(size_based_auto_wrap_policy, min_num_params=4))\n",
    ),
    "a loop": PROGRAM.replace(APPEND, f"        for _ in classes:\n    {APPEND}"),
    "a name that is bound again": PROGRAM.replace(APPEND, f"{APPEND}        classes = set()\n"),
    "a list that is handed on": PROGRAM.replace(APPEND, f"{APPEND}        config.add(policies)\n"),
    "a second name": PROGRAM.replace(APPEND, f"{APPEND}        other = policies\n"),
    "an extended list": PROGRAM.replace(APPEND, "        policies.extend([by_class])\n"),
    "an added list": PROGRAM.replace(APPEND, "        policies += [by_class]\n"),
    "an inserted one": PROGRAM.replace(APPEND, "        policies.insert(0, by_class)\n"),
    "a list that is joined": PROGRAM.replace("=policies)", "=policies + config.more)"),
    "a parameter": PROGRAM.replace(
        "net, config):\n    policies = []", "config, policies):"
    ).replace("policy_of(net, config)", "policy_of(config, config.policies)"),
    "of another library": PROGRAM.replace("policies = []", "policies = library.policies()"),
}


@pytest.mark.parametrize("which", WALKED)
def test_walked(which: str) -> None:
    text = written(WALKED[which])
    assert "shard_by_policy(net, wrap_policy)" in text
    assert "fully_shard(net)" in text
    assert "_or_policy, policies=" in text


@pytest.mark.parametrize("policy", ["library.policy(net)", "config.policies[0]", "a or library.b"])
def test_a_policy_of_another_library(policy: str) -> None:
    source = PROGRAM.replace(
        "auto_wrap_policy=policy_of(net, config)", f"auto_wrap_policy={policy}"
    )
    source = source.replace("import functools\n", "import functools\n\nimport library\n")
    result, after = migrate({"train.py": source.replace("def build(net,", "def build(net, a,")})
    assert "shard_by_policy(net, " in after["train.py"]
    assert "review" in {outcome.value for _, outcome in outcomes(result)}


def test_a_dictionary_for_single_modules_takes_the_run_time_form() -> None:
    source = PROGRAM.replace(
        "=policy_of(net, config)", "=CustomPolicy(lambda m: {'forward_prefetch': True})"
    ).replace("    _or_policy,", "    CustomPolicy,\n    _or_policy,")
    _, after = migrate({"train.py": source})
    assert "import shard\n" in after["train.py"] or "def shard(" in after["train.py"]


ASKING = """\
import functools

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from models import Block, Net

by_class = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})


def policy(module, recurse, nonwrapped_numel):
    if isinstance(module, torch.nn.Embedding):
        return False
    return by_class(module=module, recurse=recurse, nonwrapped_numel=nonwrapped_numel)


net = Net()
net = FSDP(
    net,
    auto_wrap_policy=policy,
    mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
    device_id=torch.cuda.current_device(),
)
"""


def test_a_policy_that_a_walked_function_asks_is_in_use() -> None:
    """The second run finds it asked by a function that the function for BatchNorm asks."""
    result, after = migrate({"train.py": ASKING})
    assert not result.problems
    assert {outcome.value for _, outcome in outcomes(result)} <= {"rewritten", "review"}
    assert "or policy(module=module, recurse=False" in after["train.py"]
    assert not migrate(after)[0].changes
