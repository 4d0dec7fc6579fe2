"""Kinds of state that are set in branches for FSDP1, which go with the branch."""

from __future__ import annotations

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
from contextlib import nullcontext

from torch import nn
from torch.distributed.fsdp import FSDPModule, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def fsdp_version(model):
    if isinstance(model, FSDP):
        return 1
    elif isinstance(model, FSDPModule):
        return 2
    return 0


"""
MODEL = "model = FSDP(nn.Linear(8, 8))\n"
SET = """\
def state(model):
    if fsdp_version(model) == 1:
        FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    return model.state_dict()


"""
ENTERED = """\
def context(model, kind):
    if fsdp_version(model) == 1:
        return FSDP.state_dict_type(model, kind)
    return nullcontext()


def state(model, kind):
    with context(model, kind):
        return model.state_dict()


"""
SHARDED = "state(model, StateDictType.SHARDED_STATE_DICT)\n"


def test_a_kind_that_is_set_is_kept() -> None:
    result, after = migrate({"example.py": f"{HEAD}{SET}{MODEL}state(model)\n"})
    assert "return get_model_state_dict(model)\n" in after["example.py"]
    assert all(d.outcome is not Outcome.LEFT for d in result.decisions)


def test_a_kind_of_a_context_is_kept() -> None:
    _, after = migrate({"example.py": f"{HEAD}{ENTERED}{MODEL}{SHARDED}"})
    assert "return get_model_state_dict(model)\n" in after["example.py"]


def test_a_kind_that_only_the_running_program_knows_holds_the_model_back() -> None:
    full = SHARDED.replace("SHARDED", "FULL")
    source = f"{HEAD}{ENTERED}{MODEL}{SHARDED}{full}"
    result, after = migrate({"example.py": source})
    assert all(d.outcome is Outcome.LEFT for d in result.decisions)
    assert "        return model.state_dict()\n" in after["example.py"]
    assert "model = FSDP(nn.Linear(8, 8))\n" in after["example.py"]
