"""Hazards of models that a setting shards: found where the code runs whatever it says."""

from __future__ import annotations

import pytest

from tests.helpers.hazards import codes

PROGRAM = """\
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP


def shard(model, args):
    LEAVE
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def save(model, path, args):
    SAVE


def main(model, args):
    SHARD
    model(args.sample).sum().backward()
    CALL
"""
SHARDS = {
    "a flag": "if args.fsdp:\n        shard(model, args)",
    "an enumeration": 'if args.mode == "fsdp":\n        shard(model, args)',
    "more than one rank": "if dist.get_world_size() > 1:\n        shard(model, args)",
    "in place": "if args.fsdp:\n        fully_shard(model)",
    "surely": "shard(model, args)",
}
SAVES = {
    "rank 0": "if dist.get_rank() == 0:\n        torch.save(model.state_dict(), path)",
    "a main process of another setting": (
        "if args.keep and dist.get_rank() == 0:\n        torch.save(model.state_dict(), path)"
    ),
    "behind a return": (
        "if dist.get_rank() != 0:\n        return\n    torch.save(model.state_dict(), path)"
    ),
}
OTHERS = {
    "the setting decides how it is saved": (
        "if args.fsdp:\n        print(path)\n"
        "    elif dist.get_rank() == 0:\n        torch.save(model.state_dict(), path)"
    ),
    "a look at the model decides": (
        "if is_sharded(model):\n        return\n"
        "    if dist.get_rank() == 0:\n        torch.save(model.state_dict(), path)"
    ),
    "the state is made whole": (
        "state = {k: v.full_tensor() for k, v in model.state_dict().items()}\n"
        "    if dist.get_rank() == 0:\n        torch.save(state, path)"
    ),
    "it is tried": (
        "try:\n        if dist.get_rank() == 0:\n            torch.save(model.state_dict(), path)\n"
        "    except RuntimeError:\n        raise"
    ),
}
CALL = "save(model, args.path, args)"


def program(shard: str, save: str, call: str = CALL, leave: str = "pass") -> str:
    text = PROGRAM.replace("SHARD\n", f"{shard}\n").replace("SAVE", save).replace("CALL", call)
    return text.replace("LEAVE", leave)


@pytest.mark.parametrize("shard", SHARDS)
@pytest.mark.parametrize("save", SAVES)
def test_what_is_wrong_where_the_setting_holds_is_found(shard: str, save: str) -> None:
    assert codes(program(SHARDS[shard], SAVES[save])) == ["FSDP909"]


@pytest.mark.parametrize("save", OTHERS)
def test_who_may_know_of_the_setting_is_left_alone(save: str) -> None:
    assert codes(program(SHARDS["a flag"], OTHERS[save])) == []


def test_a_function_that_leaves_under_a_setting_shards_under_it() -> None:
    leave = "if args.single:\n        return model"
    assert codes(program(SHARDS["surely"], SAVES["rank 0"], leave=leave)) == ["FSDP909"]
    asked = "if args.single and dist.get_rank() == 0:\n        torch.save(model.state_dict(), path)"
    assert codes(program(SHARDS["surely"], asked, leave=leave)) == []


@pytest.mark.parametrize(
    "call",
    [
        "if args.fsdp:\n        return\n    save(model, args.path, args)",
        "if not args.fsdp:\n        save(model, args.path, args)",
        "if args.strategy:\n        save(model, args.path, args)",
        "save(args.other, args.path, args)",
        "save(model if args.fsdp else args.other, args.path, args)",
    ],
)
def test_the_way_to_a_place_is_looked_at_as_well(call: str) -> None:
    assert codes(program(SHARDS["a flag"], SAVES["rank 0"], call)) == []


def test_a_model_that_is_something_else_otherwise_is_left_alone() -> None:
    shard = "if args.fsdp:\n        shard(model, args)\n    else:\n        model = DDP(model)"
    assert codes(program(shard, SAVES["rank 0"])) == []


def test_a_forward_of_one_rank() -> None:
    call = "if dist.get_rank() == 0:\n        print(model(args.sample))"
    assert codes(program(SHARDS["a flag"], "pass", call)) == ["FSDP915"]
    call = "if dist.get_rank() == 0 and not args.fsdp:\n        print(model(args.sample))"
    assert codes(program(SHARDS["a flag"], "pass", call)) == []
