"""What a caller gives a parameter counts where its other, literal arguments let it get to."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import library
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def load(model, path, {flag}):
    state = torch.load(path)
    if {test}:
        model.load_state_dict(state, strict=True)
    else:
        model.load_state_dict(state, strict=False)


def train(net):
    model = FSDP(net)
    load(model, "a.pt"{sharded})
    return model


def evaluate():
    load(library.build(), "a.pt"{plain})
"""
PLAIN = "        model.load_state_dict(state, strict=True)\n"


@pytest.mark.parametrize(
    ("flag", "test", "sharded", "plain"),
    [
        ("alone=False", "alone", "", ", alone=True"),
        ("alone=True", "alone", ", alone=False", ""),
        ("shared=True", "not shared", "", ", shared=False"),
        ("kind='fsdp'", "kind == 'plain'", "", ", kind='plain'"),
        ("mesh=None", "mesh is None", ", mesh=1", ""),
    ],
)
def test_a_branch_of_plain_models_stays(flag: str, test: str, sharded: str, plain: str) -> None:
    source = PROGRAM.format(flag=flag, test=test, sharded=sharded, plain=plain)
    after = migrate({"train.py": source})[1]["train.py"]
    assert PLAIN in after
    assert "model.load_state_dict(state, strict=False)" not in after


@pytest.mark.parametrize(
    ("flag", "test", "sharded", "plain"),
    [
        ("alone=False", "alone", ", alone=library.alone()", ", alone=True"),  # nobody knows
        ("alone=False", "alone", ", **library.options()", ", alone=True"),
        ("alone=False", "library.ready()", "", ", alone=True"),
    ],
)
def test_a_branch_that_may_get_a_sharded_model_does_not(
    flag: str, test: str, sharded: str, plain: str
) -> None:
    source = PROGRAM.format(flag=flag, test=test, sharded=sharded, plain=plain)
    after = migrate({"train.py": source})[1]["train.py"]
    assert PLAIN not in after


def test_a_branch_that_no_call_gets_to_is_as_before() -> None:
    source = PROGRAM.format(flag="alone=False", test="alone", sharded="", plain="")
    after = migrate({"train.py": source})[1]["train.py"]
    assert PLAIN not in after


FIELDS = """\
import library
import torch
from dataclasses import dataclass
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


@dataclass
class Config:
    path: str = "a.pt"
    alone: bool = False


def load(model, config):
    state = torch.load(config.path)
    if config.alone:
        model.load_state_dict(state, strict=True)
    else:
        model.load_state_dict(state, strict=False)


def train(net):
    model = FSDP(net)
    load(model, Config(SHARDED))
    return model


def evaluate():
    config = Config(alone=True)
    CHANGED
    load(library.build(), config)
"""


@pytest.mark.parametrize("sharded", ["", "path='b.pt'", "alone=False"])
def test_so_do_the_literal_fields_of_what_it_gives(sharded: str) -> None:
    source = FIELDS.replace("SHARDED", sharded).replace("    CHANGED\n", "")
    after = migrate({"train.py": source})[1]["train.py"]
    assert PLAIN in after
    assert "model.load_state_dict(state, strict=False)" not in after


@pytest.mark.parametrize(
    ("sharded", "changed"),
    [
        ("alone=library.alone()", "pass"),
        ("**library.options()", "pass"),
        ("", "config.alone = library.alone()"),
        ("", "setattr(config, library.field(), True)"),
        ("", "config.__dict__.update(library.options())"),
    ],
)
def test_fields_that_may_have_another_value_do_not(sharded: str, changed: str) -> None:
    source = FIELDS.replace("SHARDED", sharded).replace("CHANGED", changed)
    after = migrate({"train.py": source})[1]["train.py"]
    assert PLAIN not in after
