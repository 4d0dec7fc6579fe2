"""What an optimizer saves and loads where the model of the run is not FSDP's: it stays."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

HEAD = """\
import argparse

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, FullStateDictConfig
from torch.distributed.fsdp import StateDictType
from torch.nn.parallel import DistributedDataParallel as DDP


def wrap(args, model):
    if {fsdp}:
        return FSDP(model)
    return DDP(model)


def load(args, model, optimizer, path):
    saved = torch.load(path)
{load}


def save(args, model, optimizer, path):
{save}


def main(net):
    parser = argparse.ArgumentParser()
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--parallel", default="fsdp")
    args = parser.parse_args()
    model = wrap(args, net)
    optimizer = torch.optim.AdamW(model.parameters())
    load(args, model, optimizer, "c.pt")
    save(args, model, optimizer, "c.pt")
"""
FSDP_LOAD = """\
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            model.load_state_dict(saved["model"])
        state = FSDP.optim_state_dict_to_load(model, optimizer, saved["optimizer"])
        optimizer.load_state_dict(state)"""
DDP_LOAD = """\
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])"""
FSDP_SAVE = """\
        kind = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, kind):
            states = model.state_dict(), FSDP.optim_state_dict(model, optimizer)
        if dist.get_rank() == 0:
            torch.save(states, path)"""
DDP_SAVE = """\
        if dist.get_rank() == 0:
            torch.save({"optimizer": optimizer.state_dict()}, path)"""


def program(fsdp: str, other: str) -> str:
    def both(first: str, second: str) -> str:
        return f"    if {fsdp}:\n{first}\n    {other}:\n{second}"

    load, save = both(FSDP_LOAD, DDP_LOAD), both(FSDP_SAVE, DDP_SAVE)
    return HEAD.format(fsdp=fsdp, load=load, save=save)


@pytest.mark.parametrize(
    ("fsdp", "other"),
    [
        ("args.fsdp", "else"),
        ("args.fsdp", "if not args.fsdp"),
        ("args.parallel == 'fsdp'", "else"),
        ("args.parallel == 'fsdp'", "elif args.parallel == 'ddp'"),
        ("args.parallel != 'ddp'", "else"),
    ],
)
def test_states_of_a_run_with_ddp_stay(fsdp: str, other: str) -> None:
    result, after = migrate({"train.py": program(fsdp, other)})
    assert not result.problems
    assert DDP_LOAD in after["train.py"]
    assert DDP_SAVE in after["train.py"]
    assert not [d for d in result.decisions if d.code == "FSDP312"]
    assert "get_optimizer_state_dict(model, optimizer" in after["train.py"]
    # No copy of what is loaded for the other side's sake.
    assert other.startswith("if") or 'saved["model"],' in after["train.py"]


@pytest.mark.parametrize("other", ["else", "if args.resume", "if True"])
def test_those_of_a_run_with_fsdp_do_not(other: str) -> None:
    """Another setting than the one that chose the wrapper says nothing of it."""
    text = program("args.fsdp", other).replace(
        "if args.fsdp:\n        return", "if args.shard:\n        return"
    )
    result, _ = migrate({"train.py": text})
    assert [d for d in result.decisions if d.code == "FSDP312"]


def test_a_setting_that_changes_in_between_says_nothing() -> None:
    text = program("args.fsdp", "else").replace(
        "    load(args", "    args.fsdp = False\n    load(args"
    )
    result, _ = migrate({"train.py": text})
    assert [d for d in result.decisions if d.code == "FSDP312"]


CHAIN = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, args, net):
        self.args, self.model = args, net
        if args.fsdp:
            self.model = FSDP(net)

    def best(self):
        if self.args.save:
            return None
        elif FIRST:
            return print(self.model)
        return self.model.state_dict()


def main(args, batch):
    trainer = Trainer(args, nn.Linear(2, 2))
    trainer.model(batch).sum().backward()
    torch.save(trainer.best(), "a.pt")
"""


@pytest.mark.parametrize(("first", "stays"), [("self.args.fsdp", True), ("self.args.shard", False)])
def test_what_every_way_of_a_chain_left_is_told_behind_it(first: str, stays: bool) -> None:
    text = CHAIN.replace("FIRST", first)
    _, after = migrate({"train.py": text})
    assert ("        return self.model.state_dict()\n" in after["train.py"]) is stays
