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


METHODS = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Framework:
    def read(self, model):
        model.load_state_dict(torch.load(self.path))
        return model

    def wrap(self, model):
        return FSDP(model, use_orig_params=True)

    def begin(self, model):
        BODY
        return model
"""


@pytest.mark.parametrize(
    ("body", "plain"),
    [
        (["model = self.read(model)", "model = self.wrap(model)"], True),
        (["if self.path:", "    model = self.read(model)", "model = self.wrap(model)"], True),
        (["model = self.wrap(model)", "model = self.read(model)"], False),
        (["model = self.wrap(model)", "return model"], False),
        (["for _ in self:", "    self.read(model)", "    model = self.wrap(model)"], False),
    ],
)
def test_what_a_method_loads_above_the_one_that_shards_is_plain_yet(
    body: list[str], plain: bool
) -> None:
    text = rewritten(METHODS.replace("BODY", "\n        ".join(body)))
    assert "fully_shard(model)" in text
    assert (MARKER not in text and "set_model_state_dict(" not in text) is plain
