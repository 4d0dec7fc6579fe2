"""States that are loaded and that nothing gives back to the model."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


class Trainer:
    def __init__(self, net, args):
        self.model = FSDP(net, use_orig_params=True)
        self.plain = net.head
        self.whole = StateDictOptions(full_state_dict=True)
        self.chosen = StateDictOptions(full_state_dict=args.full)

    def resume(self, optimizer, path):
{body}
"""
MARKED = {
    "of both": "m, o = get_state_dict(self.model, optimizer)\ndcp.load(m, checkpoint_id=path)",
    "by keywords": (
        "m, o = get_state_dict(model=self.model, optimizers=optimizer, options=self.chosen)\n"
        "dcp.load(state_dict=m, checkpoint_id=path)\ndcp.load(o, checkpoint_id=path)"
    ),
    "in a dictionary": (
        "state = {'model': get_model_state_dict(self.model)}\ndcp.load(state, checkpoint_id=path)"
    ),
    "at the call": "dcp.load({'model': get_model_state_dict(self.model)}, checkpoint_id=path)",
    "by FSDP1's context": (
        "with FSDP.state_dict_type(self.model, StateDictType.SHARDED_STATE_DICT):\n"
        "    state = self.model.state_dict()\n    dcp.load(state, checkpoint_id=path)"
    ),
}
UNMARKED = {
    "given back": (
        "state = get_model_state_dict(self.model)\ndcp.load(state, checkpoint_id=path)\n"
        "set_model_state_dict(self.model, state)"
    ),
    "given back by a key": (
        "state = {'m': get_model_state_dict(self.model)}\ndcp.load(state, checkpoint_id=path)\n"
        "set_model_state_dict(self.model, state['m'])"
    ),
    "returned": (
        "state = get_model_state_dict(self.model)\ndcp.load(state, checkpoint_id=path)\n"
        "return state"
    ),
    "whole": (
        "state = get_model_state_dict(self.model, options=self.whole)\n"
        "dcp.load(state, checkpoint_id=path)"
    ),
    "whole, by default": ("state = self.model.state_dict()\ndcp.load(state, checkpoint_id=path)"),
    "of a part that is not sharded": (
        "state = self.plain.state_dict()\ndcp.load(state, checkpoint_id=path)"
    ),
    "another load": "state = get_model_state_dict(self.model)\ntorch.load(state)",
    "saved": "state = get_model_state_dict(self.model)\ndcp.save(state, checkpoint_id=path)",
}


def migrated(body: str) -> str:
    indented = "".join(f"        {line}\n" for line in body.splitlines())
    result, after = migrate({"train.py": PROGRAM.format(body=indented)})
    assert not result.problems
    assert all(d.outcome is not Outcome.LEFT for d in result.decisions)
    return after["train.py"]


@pytest.mark.parametrize("how", MARKED)
def test_it_is_marked(how: str) -> None:
    assert "FSDP313" in migrated(MARKED[how])


@pytest.mark.parametrize("how", UNMARKED)
def test_it_is_not_marked(how: str) -> None:
    assert "FSDP313" not in migrated(UNMARKED[how])
