"""Policies that no constructor is given, beside others that are."""

from __future__ import annotations

import pytest

from fsdp_migrate.migration.engine import Options
from fsdp_migrate.planning.model import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
import functools

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import (
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)

from layers import First, Second


def first():
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={First})
    return policy


"""
ONE = """\
def build(net):
    return FSDP(net, auto_wrap_policy=first())


"""
TWO = """\
def small():
    return functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda module: module.is_small)


def build(net, parts):
    return FSDP(net, auto_wrap_policy=small() if parts else first())


"""
RETURNED = """\
def second():
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Second})
    return policy
"""
SECOND = "functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Second})"
SIZE = "functools.partial(size_based_auto_wrap_policy, min_num_params=9)"


def spare(text: str) -> tuple[Outcome, str]:
    """What becomes of the last policy, and the text of its function."""
    result, after = migrate({"train.py": HEAD + text})
    decided = [d for d in result.decisions if d.code == "FSDP102"]
    return max(decided, key=lambda d: d.site.position).outcome, after["train.py"]


def by_size(text: str) -> tuple[Outcome, str]:
    """What becomes of the policy that counts, and the text of the file."""
    result, after = migrate({"train.py": HEAD + text})
    found = [d for d in result.decisions if d.site.construct.name == "size_based_auto_wrap_policy"]
    assert [d.code for d in found] == ["FSDP102"]
    return found[0].outcome, after["train.py"]


def test_it_is_classes_where_the_others_are() -> None:
    outcome, text = spare(ONE + RETURNED)
    assert outcome is Outcome.REVIEW
    assert "    policy = (Second,)\n    return policy\n" in text


def test_it_is_a_predicate_where_the_others_are() -> None:
    outcome, text = spare(TWO + RETURNED)
    assert outcome is Outcome.REVIEW
    assert "    def policy(module):\n        return isinstance(module, Second)\n" in text


def test_it_is_returned_as_it_is() -> None:
    text = "def second():\n    return functools.partial(transformer_auto_wrap_policy, {})\n"
    outcome, after = spare(ONE + text.format("transformer_layer_cls={First, Second}"))
    assert outcome is Outcome.REVIEW
    assert "    return (First, Second)\n" in after


@pytest.mark.parametrize(
    "text",
    [
        RETURNED.replace("    return policy", "    register(policy)\n    return policy"),
        RETURNED.replace("    return policy", "    return Settings(policy)"),
        f"POLICY = {SECOND}\n",
        f"def second():\n    return {SIZE}",
        f"def second():\n    policy = None\n    policy = {SECOND}\n    return policy\n",
    ],
    ids=["used", "in an object", "a constant", "by size", "one of two"],
)
def test_others_are_left(text: str) -> None:
    outcome, after = spare(ONE + text)
    assert outcome is Outcome.LEFT
    assert "functools.partial(" in after


def test_it_is_left_where_no_other_is_a_value() -> None:
    inline = HEAD.split("def first", maxsplit=1)[0] + (
        "def build(net):\n    policy = functools.partial(\n"
        "        transformer_auto_wrap_policy, transformer_layer_cls={First}\n    )\n"
        "    return FSDP(net, auto_wrap_policy=policy)\n\n\n"
    )
    result, after = migrate({"train.py": inline + RETURNED})
    assert max(result.decisions, key=lambda d: d.site.position).outcome is Outcome.LEFT
    assert "functools.partial(transformer_auto_wrap_policy" in after["train.py"]


UNREAD = f"""\
def build(net):
    policy = {SIZE}
    BODY
    return FSDP(net, auto_wrap_policy=first())
"""


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("pass", Outcome.REWRITTEN),
        ("print(policy)", Outcome.LEFT),
        ("later = lambda: policy", Outcome.LEFT),
        ("globals().update(locals())", Outcome.LEFT),
    ],
)
def test_a_policy_that_a_function_makes_and_nothing_reads_goes(body: str, outcome: Outcome) -> None:
    decided, after = by_size(UNREAD.replace("BODY", body))
    stays = outcome is Outcome.LEFT
    assert decided is outcome
    assert (SIZE in after) is stays
    assert ("TODO" in after) is stays


def test_a_policy_with_a_call_that_is_made_stays() -> None:
    outcome, after = by_size(UNREAD.replace("=9", "=count()").replace("BODY", "pass"))
    assert outcome is Outcome.LEFT
    assert "count()" in after


@pytest.mark.parametrize("more", ["", "print(second())\n", "print(other.second)\n"])
@pytest.mark.parametrize("published", [False, True])
def test_a_function_that_nothing_reads_returns_what_loops_take(more: str, published: bool) -> None:
    """The number of parameters, as ``units_by_size`` takes it, and classes for ``isinstance``."""
    counting = f"def second():\n    policy = {SIZE}\n    return policy\n"
    inline = HEAD.split("def first", maxsplit=1)[0] + "def build(net):\n    return FSDP(net)\n\n\n"
    for text, new in ((counting, "    policy = 9\n"), (RETURNED, "    policy = (Second,)\n")):
        result, after = migrate({"train.py": inline + text + more}, Options(published=published))
        is_spare = not published and not more
        decided = [d.outcome for d in result.decisions if d.code == "FSDP102"]
        assert set(decided) == {Outcome.REWRITTEN if is_spare else Outcome.LEFT}
        assert (new in after["train.py"]) is is_spare
        assert ("TODO" in after["train.py"]) is not is_spare


PRECISION = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def build(net):
    half = MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
    BODY
    return FSDP(net)
"""


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("pass", Outcome.REWRITTEN),
        ("print(half)", Outcome.REVIEW),
        ("later = lambda: half", Outcome.REVIEW),
    ],
)
def test_a_precision_that_a_function_makes_and_nothing_reads_is_not_marked(
    body: str, outcome: Outcome
) -> None:
    result, after = migrate({"train.py": PRECISION.replace("BODY", body)})
    decided = [d for d in result.decisions if d.site.construct.name == "MixedPrecision"]
    assert [d.outcome for d in decided if d.code == "FSDP202"] == [outcome]
    assert "half = MixedPrecisionPolicy(param_dtype=torch.bfloat16" in after["train.py"]


def test_a_precision_of_a_file_is_marked() -> None:
    text = PRECISION.replace("def build(net):\n    half", "half").replace(
        "    BODY\n    return", "x ="
    )
    result, _ = migrate({"train.py": text})
    assert [d.outcome for d in result.decisions if d.code == "FSDP202"] == [Outcome.REVIEW]
