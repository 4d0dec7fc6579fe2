"""States that a project with both FSDPs asks for in a context of its own."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import contextlib

import torch
from torch.distributed.fsdp import FSDPModule, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def version(model):
    if isinstance(model, FSDP):
        return 1
    elif isinstance(model, FSDPModule):
        return 2
    else:
        return 0


def context(model, kind, config):
    if version(model) == 1:
        return FSDP.state_dict_type(model, kind, config)
    else:
        return contextlib.nullcontext()


class Manager:
    def __init__(self, model):
        self.model = model


class Saving(Manager):
    def __init__(self, model):
        super().__init__(model=model)

    def save(self, config, path):
        with context(self.model, KIND, config):
            state = self.model.state_dict()
            torch.save(state, path)

    def load(self, config, path):
        with context(self.model, KIND, config):
            self.model.load_state_dict(torch.load(path))


def train(net, config):
    manager = Saving(FSDP(net))
    manager.save(config, "model.pt")
    manager.load(config, "model.pt")
"""


WHOLE = """

def export(net, config):
    model = FSDP(net)
    with context(model, StateDictType.FULL_STATE_DICT, config):
        print(len(list(model.parameters())))
"""


@pytest.mark.parametrize("kind", ["config.kind", "StateDictType.FULL_STATE_DICT"])
def test_another_kind_or_one_that_nobody_knows_is_not_kept(kind: str) -> None:
    source = PROGRAM.replace("KIND", kind) + WHOLE.replace("FULL", "SHARDED")
    result, _ = migrate({"train.py": source})
    assert not [d for d in result.decisions if d.message.startswith("kept: SHARDED is set")]


def test_what_fsdp2_models_are_asked_in_the_project_is_kept() -> None:
    """The context does nothing for them; another use sets another kind, by the same function."""
    sharded = PROGRAM.replace("KIND", "StateDictType.SHARDED_STATE_DICT")
    result, after = migrate({"train.py": sharded + WHOLE})
    assert not result.problems
    assert "            state = self.model.state_dict()\n" in after["train.py"]
    assert "            self.model.load_state_dict(torch.load(path))\n" in after["train.py"]
    assert "manager = Saving(fully_shard(net))" in after["train.py"]


def test_without_a_branch_for_fsdp2_the_running_program_says_the_kind() -> None:
    source = PROGRAM.replace("KIND", "config.kind").replace(
        "    if version(model) == 1:\n        return FSDP.state", "    return FSDP.state"
    )
    source = source.replace("    else:\n        return contextlib.nullcontext()\n", "")
    _, after = migrate({"train.py": source})
    assert "from fsdp2_support import state_dict_type" in after["train.py"]
    assert "return state_dict_type(model, kind, config)" in after["train.py"]


SETTING = """\
import torch
from torch.distributed.fsdp import FSDPModule, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def version(model):
    if isinstance(model, FSDP):
        return 1
    elif isinstance(model, FSDPModule):
        return 2
    else:
        return 0


class Manager:
    def __init__(self, model, whole):
        self.model = model
        if whole and version(model) == 1:
            FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
        elif version(model) == 1:
            FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)

    def send(self):
        return {name: tensor.cpu() for name, tensor in self.model.state_dict().items()}


def train(net, whole):
    return Manager(FSDP(net), whole).send()
"""
KEPT = "self.model.state_dict().items()"


def test_a_kind_that_a_branch_for_fsdp1_set_in_one_case_is_for_review() -> None:
    """FSDP2 models of the project give shards in both."""
    result, after = migrate({"train.py": SETTING})
    assert KEPT in after["train.py"]
    assert "set_state_dict_type" not in after["train.py"]
    assert [d.help for d in result.decisions if "in one case" in d.help]


def test_kinds_that_every_model_is_set_to_are_not_kept_as_fsdp2s() -> None:
    source = SETTING.replace("whole and version(model) == 1", "whole")
    source = source.replace("elif version(model) == 1:", "else:")
    result, after = migrate({"train.py": source})
    assert " set_state_dict_type(model, " in after["train.py"]  # the support module's
    assert not [d for d in result.decisions if "in one case" in d.help]
