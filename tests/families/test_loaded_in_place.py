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
    get_optimizer_state_dict,
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
    "with an entry stored before": (
        "state = {'model': get_model_state_dict(self.model)}\n"
        "state['epoch'] = 3\ndcp.load(state, checkpoint_id=path)"
    ),
    "with an entry stored under a condition": (
        "with FSDP.state_dict_type(self.model, StateDictType.SHARDED_STATE_DICT):\n"
        "    state = {'model': self.model.state_dict()}\n"
        "    if optimizer is not None:\n"
        "        state['optim'] = FSDP.optim_state_dict(self.model, optimizer)\n"
        "    dcp.load(state, checkpoint_id=path)"
    ),
    "stored in an empty dictionary": (
        "state = {}\nstate['model'] = get_model_state_dict(self.model)\n"
        "dcp.load(state, checkpoint_id=path)"
    ),
    "given to update": (
        "state = dict(epoch=1)\nstate.update(model=get_model_state_dict(self.model))\n"
        "dcp.load(state, checkpoint_id=path)"
    ),
    "update by a dictionary": (
        "state = {'epoch': 1}\nstate.update({'model': get_model_state_dict(self.model)})\n"
        "dcp.load(state, checkpoint_id=path)"
    ),
    "by keywords of dict": (
        "state = dict(model=get_model_state_dict(self.model))\ndcp.load(state, checkpoint_id=path)"
    ),
    "a state of its own with one more entry": (
        "state = get_model_state_dict(self.model)\nstate['epoch'] = 3\n"
        "dcp.load(state, checkpoint_id=path)"
    ),
    "an entry is stored after it": (
        "state = {'model': get_model_state_dict(self.model)}\n"
        "dcp.load(state, checkpoint_id=path)\nstate['model'] = None"
    ),
    "another entry is read": (
        "state = {'model': get_model_state_dict(self.model), 'epoch': 0}\n"
        "dcp.load(state, checkpoint_id=path)\nself.epoch = state['epoch']"
    ),
}
for way, more in {
    "joined": "state |= {'epoch': 0}",
    "joined to another": "state = state | more",
    "joined the other way": "state = more | state",
    "opened": "state = {**state, 'epoch': 0}",
}.items():
    MARKED[way] = (
        f"state = {{'model': get_model_state_dict(self.model)}}\n{more}\n"
        "dcp.load(state, checkpoint_id=path)\nself.epoch = state['epoch']"
    )
for way, asked in {
    "get": "self.epoch = state.get('epoch')",
    "get with a default": "self.epoch = state.get('epoch', 0)",
    "pop": "self.epoch = state.pop('epoch')",
    "asked for": "if 'epoch' in state:\n    self.epoch = state['epoch']",
}.items():
    MARKED[way] = (
        "state = {'model': get_model_state_dict(self.model), 'epoch': 0}\n"
        f"dcp.load(state, checkpoint_id=path)\n{asked}"
    )
UNMARKED = {
    "given back by get": (
        "state = {'model': get_model_state_dict(self.model)}\nstate |= {'epoch': 3}\n"
        "dcp.load(state, checkpoint_id=path)\nset_model_state_dict(self.model, state.get('model'))"
    ),
    "given back by any key": (
        "state = {'model': get_model_state_dict(self.model)}\n"
        "dcp.load(state, checkpoint_id=path)\nself.found = [state.get(k) for k in ('model',)]"
    ),
    "a state of another name is joined": (
        "first = {'model': get_model_state_dict(self.model)}\nstate = first | {'epoch': 3}\n"
        "dcp.load(state, checkpoint_id=path)\nset_model_state_dict(self.model, first['model'])"
    ),
    "an entry that was stored is given back": (
        "state = {}\nstate['model'] = get_model_state_dict(self.model)\n"
        "dcp.load(state, checkpoint_id=path)\nset_model_state_dict(self.model, state['model'])"
    ),
    "all are given back, with an entry more": (
        "state = {'model': get_model_state_dict(self.model)}\nstate['epoch'] = 3\n"
        "dcp.load(state, checkpoint_id=path)\nself.apply(**state)"
    ),
    "overwritten before": (
        "state = {'model': get_model_state_dict(self.model)}\nstate['model'] = {}\n"
        "dcp.load(state, checkpoint_id=path)"
    ),
    "deleted before": (
        "state = {'model': get_model_state_dict(self.model), 'epoch': 0}\ndel state['model']\n"
        "dcp.load(state, checkpoint_id=path)"
    ),
    "stored after": (
        "state = {'epoch': 0}\ndcp.load(state, checkpoint_id=path)\n"
        "state['model'] = get_model_state_dict(self.model)"
    ),
    "a tensor of its own is read": (
        "state = get_model_state_dict(self.model)\ndcp.load(state, checkpoint_id=path)\n"
        "self.bias = state['bias']"
    ),
    "read by any key": (
        "state = {'model': get_model_state_dict(self.model)}\nstate['epoch'] = 3\n"
        "dcp.load(state, checkpoint_id=path)\nself.found = [state[k] for k in ('model',)]"
    ),
    "stored in something else": (
        "state = {'model': get_model_state_dict(self.model)}\nself.all['state'] = state\n"
        "dcp.load(state, checkpoint_id=path)"
    ),
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
