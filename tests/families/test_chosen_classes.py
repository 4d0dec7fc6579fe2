"""``(FSDP if flag else Other)(model, ...)`` as two branches, or with the arguments of FSDP1."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, outcomes, rewritten

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel as DDP

from elsewhere import Other


class Alone(nn.Module):
    def __init__(self, module, process_group=None, **kwargs):
        super().__init__()
        self.module = module


class Derived(Alone):
    pass


class Asking(nn.Module):
    def __init__(self, module, **kwargs):
        super().__init__()
        self.module, self.ids = module, kwargs["device_id"]


"""


def built(call: str, *before: str) -> str:
    """What becomes of a function that gives back what ``call`` makes."""
    lines = "".join(f"    {line}\n" for line in (*before, f"model = {call}", "return model"))
    return rewritten(f"{HEAD}def build(net, args, flag):\n{lines}").partition("def build")[2]


@pytest.mark.parametrize(
    ("other", "given", "kept"),
    [
        ("DDP", "", ""),
        ("DDP", ", process_group=args.group", ", process_group=args.group"),
        ("Other", ", use_orig_params=True", ", use_orig_params=True"),
        ("Other", ", device_id=args.rank()", ", device_id=args.rank()"),
        ("Alone", ", sharding_strategy=ShardingStrategy.NO_SHARD, use_orig_params=True", ""),
        ("Alone", ", process_group=args.group", ", process_group=args.group"),
        ("Asking", ", device_id=0", ", device_id=0"),
        ("args.other", "", ""),
    ],
)
def test_the_other_class_is_given_what_it_may_read(other: str, given: str, kept: str) -> None:
    text = built(f"(FSDP if flag else {other})(net{given})")
    assert "    if flag:\n" in text
    assert "fully_shard(net" in text
    assert f"    else:\n        model = {other}(net{kept})\n" in text


@pytest.mark.parametrize(
    "call",
    [
        "(FSDP if flag else Other)(net, sharding_strategy=ShardingStrategy.NO_SHARD)",
        "(FSDP if flag else Derived)(net, sharding_strategy=ShardingStrategy.NO_SHARD)",
        "(FSDP if flag else Asking)(net, device_id=[0][0])",
        "(FSDP if flag else DDP)(net, args.group)",
        "(FSDP if flag else DDP)(net, **args.more)",
        "(FSDP if ready(args) else DDP)(nn.Linear(2, 2))",
        "(Other if args else FSDP if flag else DDP)(net)",
    ],
)
def test_what_cannot_be_told_keeps_the_arguments_of_fsdp1(call: str) -> None:
    assert "shard if flag else" in built(call).replace("ready(args)", "flag")


def test_the_order_of_the_branches_stays() -> None:
    text = built("(DDP if flag else FSDP)(net)")
    assert (
        "    if flag:\n        model = DDP(net)\n    else:\n        model = fully_shard(net)"
        in text
    )


@pytest.mark.parametrize(
    "before",
    [
        (),
        ("net = net.half()",),
        ("args.other = 1",),
        ("print(flag)",),
    ],
)
def test_a_choice_that_has_a_name_is_made_at_the_call(before: tuple[str, ...]) -> None:
    text = built("wrapper(net)", "wrapper = FSDP if flag else DDP", *before)
    assert "wrapper" not in text
    assert "    if flag:\n" in text


@pytest.mark.parametrize(
    ("choice", "between"),
    [
        ("FSDP if flag else DDP", "flag = False"),
        ("FSDP if args.flag else DDP", "args = net.args"),
        ("FSDP if args.flag else DDP", "args.flag = False"),
        ("FSDP if flag[0] else DDP", "flag[0] = False"),
        ("FSDP if dist.is_initialized() else DDP", "dist.init_process_group()"),
        ("FSDP if flag else DDP", "wrapper = DDP"),
    ],
)
def test_but_not_where_the_answer_may_be_another_by_then(choice: str, between: str) -> None:
    text = built("wrapper(net)", f"wrapper = {choice}", between)
    assert f"wrapper = shard {choice.removeprefix('FSDP ')}" in text


def test_what_one_condition_chose_is_met_under_it_alone() -> None:
    source = HEAD + (
        "def main(args):\n"
        "    net = nn.Linear(2, 2)\n"
        "    model = (FSDP if args.sharded else Alone)(net)\n"
        "    model(torch.ones(2)).sum().backward()\n"
        "    if args.sharded:\n"
        "        model.clip_grad_norm_(1.0)\n"
        "    else:\n"
        "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    )
    result, after = migrate({"train.py": source})
    assert {outcome for _, outcome in outcomes(result)} == {Outcome.REWRITTEN}
    assert list(after) == ["train.py"]


def test_a_comment_behind_the_call_stands_above_the_condition() -> None:
    text = built("(FSDP if flag else DDP)(net)  # one of two")
    assert "    # one of two\n    if flag:\n" in text
    assert "noqa" not in built("(FSDP if flag else DDP)(net)  # noqa: X1")
