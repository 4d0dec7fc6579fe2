"""Policies in a list become predicates only where the list holds nothing else when it is asked."""

from __future__ import annotations

import ast

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
COUNTING = PROGRAM.replace(
    APPEND,
    f"{APPEND}    if config.size:\n        policies.append("
    "functools.partial(size_based_auto_wrap_policy, min_num_params=config.size))\n",
)


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


def test_one_of_them_counts() -> None:
    """Children are sharded when a module is asked, so that what they hold does not count."""
    text = written(COUNTING)
    assert "if not isinstance(p, DTensor)" in text
    assert ">= config.size" in text
    assert "for module in reversed(list(net.modules())):\n            if module is not net" in text
    assert "shard_by_policy" not in text
    assert not migrate({"train.py": text})[0].changes


WALKED = {
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
    "one counts with leaves of its own": COUNTING.replace(
        "min_num_params=config.size", "min_num_params=config.size, force_leaf_modules={Leaf}"
    ),
    "one counts without what is ignored": COUNTING.replace(
        "=policy_of(net, config)", "=policy_of(net, config), ignored_modules=[net.frozen]"
    ),
    "one counts what may be sharded before": COUNTING.replace(
        "def build", "def tensor_parallel(net):\n    parallelize_module(net)\n\n\ndef build"
    ),
    "one counts attention of the project's own": COUNTING.replace(
        "def build",
        "class Attention(torch.nn.MultiheadAttention):\n    pass\n\n\ndef build",
    ).replace("import functools", "import functools\n\nimport torch"),
    "one counts, and another is of the project's own": COUNTING.replace(
        APPEND, f"{APPEND}        policies.append(own)\n"
    ).replace(
        "def build",
        "def own(module, recurse, nonwrapped_numel):\n    return nonwrapped_numel > 4\n\n\n"
        "def build",
    ),
    "one that nobody can follow": PROGRAM.replace(
        APPEND, f"{APPEND}        policies.append(config.policy())\n"
    ),
    "one that nobody can follow, in a list that is written out": PROGRAM.replace(
        "=policies)", "=[config.policy(), *policies])"
    ),
    "one that nobody can follow, beside one that is": PROGRAM.replace(
        "policies=policies)",
        "policies=[config.policy(), by_class])",
    ),
    "of another library": PROGRAM.replace("policies = []", "policies = library.policies()"),
}


@pytest.mark.parametrize("which", WALKED)
def test_walked(which: str) -> None:
    text = written(WALKED[which])
    assert "shard_by_policy(net, wrap_policy" in text
    assert "fully_shard(net" in text
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


CHOSEN = """\
from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import _or_policy, lambda_auto_wrap_policy, ModuleWrapPolicy

from models import Block, is_adapter

blocks = ModuleWrapPolicy({Block})


def policy_of(config):
    return CHOICE


def build(net, config):
    return FSDP(net, auto_wrap_policy=policy_of(config))
"""


def lambdas(text: str) -> list[ast.Lambda]:
    return [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Lambda)]


EITHER = "partial(_or_policy, policies=[blocks, ModuleWrapPolicy({Block})])"


@pytest.mark.parametrize(
    "choice",
    [
        f"{EITHER} if config.lora else partial(lambda_auto_wrap_policy, lambda_fn=is_adapter)",
        f"partial(lambda_auto_wrap_policy, lambda_fn=is_adapter) if config.lora else {EITHER}",
        f"{EITHER} if config.lora else None",
        f"None if config.lora else {EITHER}",
    ],
)
def test_a_predicate_in_a_choice_ends_in_front_of_its_else(choice: str) -> None:
    """``lambda module: a if c else b`` would be one predicate that chooses for each module."""
    text = written(CHOSEN.replace("CHOICE", choice))
    chosen = [n.test for n in ast.walk(ast.parse(text)) if isinstance(n, ast.IfExp)]
    assert list(map(ast.unparse, chosen)) == ["config.lora"]
    assert not any(isinstance(p.body, ast.IfExp) for p in lambdas(text))


SPREAD = """\
from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import _or_policy, transformer_auto_wrap_policy


def by_class(cls):
    return cls


def build(net, Block, classes, more):
    first = partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    policy = partial(_or_policy, policies=LIST)
    return FSDP(net, auto_wrap_policy=policy)
"""
ONE = "partial(transformer_auto_wrap_policy, transformer_layer_cls={c})"


@pytest.mark.parametrize(
    "policies",
    [
        f"[*[{ONE} for c in classes]]",
        f"[first, *({ONE} for c in classes)]",
        f"[first, *[{ONE.replace('{c}', '{Block}')}]]",
        f"[{ONE} for c in classes]",
        "[first, *more]",
    ],
)
def test_a_list_in_a_list_is_walked(policies: str) -> None:
    """How many policies ``*`` brings is not written: FSDP1's function is asked as it was."""
    text = written(SPREAD.replace("LIST", policies))
    assert "shard_by_policy(net, policy)" in text
    assert f"policies={policies}" in text
