"""Loads into what may be anything, in a function that shards it further down, itself or through
another one."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
import importlib
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def make(name):
    model_class = getattr(importlib.import_module("models"), name)
    return model_class()


def wrap(net, backend, many):
    if not many:
        return net
    if backend == "fsdp":
        net = FSDP(net)
    return net


def prepare(args, net):
    net = net.cuda()
    return wrap(net, args.backend, args.many)


def both(net):
    net = FSDP(net)
    return net, 1


def main(args):
    model = make(args.name)
    BODY
    return model
"""
LOAD = "model.load_state_dict(torch.load(args.path))"
MARKER = "If this is a sharded model, it takes no whole tensors now"


def written(*lines: str) -> str:
    return rewritten(PROGRAM.replace("BODY", "\n    ".join(lines)))


@pytest.mark.parametrize(
    "wrapping",
    [
        "model = FSDP(model)",
        "model = wrap(model, args.backend, args.many)",
        "model = prepare(args, model)",
        "sharded = prepare(args, net=model)",
        "model, number = both(model)",
    ],
)
def test_what_a_function_shards_further_down_is_plain_yet(wrapping: str) -> None:
    text = written(LOAD, wrapping)
    assert f"    {LOAD}\n" in text
    assert "TODO" not in text


@pytest.mark.parametrize(
    "wrapping", ["other = wrap(make(args.name), args.backend, args.many)", "wrap"]
)
def test_what_nothing_shards_further_down_may_be_sharded(wrapping: str) -> None:
    assert MARKER in written(LOAD, wrapping)


def test_what_one_arm_shards_is_not_sharded_later_in_the_other() -> None:
    text = written("if args.many:", "    model = both(model)[0]", "else:", f"    {LOAD}")
    assert "set_model_state_dict(model" not in text


def test_a_load_behind_the_call_gives_every_rank_its_part() -> None:
    assert "set_model_state_dict(" in written("model, number = both(model)", LOAD)
