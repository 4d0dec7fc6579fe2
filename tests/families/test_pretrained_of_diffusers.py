"""Models of diffusers ask themselves for the state that they save, whatever they are given."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
from LIBRARY import Model
import diffusers
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import FullStateDictConfig, StateDictType


class Own(Model):
    pass


def main(path, state, given):
    model = FSDP(MADE, use_orig_params=True)
    SAVE
"""
ASKED = "save_pretrained of diffusers"


def after(library: str, made: str, save: str) -> str:
    program = PROGRAM.replace("LIBRARY", library).replace("MADE", made).replace("SAVE", save)
    return rewritten(program)


SAVES = [
    "model.save_pretrained(path)",
    "model.save_pretrained(path, state_dict=state)",
    "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n"
    "        model.save_pretrained(path, safe_serialization=False)",
    "saved = model.save_pretrained(path)",
]


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("made", ["Model()", "Model.from_pretrained(path)", "Own()"])
def test_they_are_asked_for_whole_states(made: str, save: str) -> None:
    found = after("diffusers", made, save)
    assert "with whole_states(model):" in found
    assert ASKED in found


@pytest.mark.parametrize("save", SAVES)
def test_what_may_be_one_is_saved_so_that_both_work(save: str) -> None:
    assert "with whole_states(model):" in after("elsewhere", "given", save)


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("made", ["Model()", "Model.from_pretrained(path)", "Own()"])
def test_models_of_transformers_are_given_their_state(made: str, save: str) -> None:
    found = after("transformers", made, save)
    assert "whole_states" not in found
    assert "state_dict=" in found
    assert ASKED not in found


INSIDE = "model.module.save_pretrained(path, state_dict=state)"


def test_the_module_inside_would_be_asked_for_its_pieces() -> None:
    found = after("diffusers", "Model()", INSIDE)
    assert "fully_shard" not in found
    assert "as it held it" in found


def test_the_module_inside_of_what_may_be_one_is_marked() -> None:
    found = after("elsewhere", "given", INSIDE)
    assert "model.save_pretrained(path, state_dict=state)" in found
    assert f"{ASKED} passes over" in found.replace("\n    #    ", "").replace("Save", "save")


def test_the_module_inside_of_transformers_is_the_model() -> None:
    assert ASKED not in after("transformers", "Model()", INSIDE)
