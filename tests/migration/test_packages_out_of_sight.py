"""Models that are given to packages which nobody here knows: a project's own may be missing."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

SOURCE = """\
import IMPORT
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net, path):
    model = FSDP(net)
    other = net.config
    CALL
"""


def named(imported: str, call: str) -> list[str]:
    result, _ = migrate({"train.py": SOURCE.replace("IMPORT", imported).replace("CALL", call)})
    return [place.why for place in result.not_followed]


@pytest.mark.parametrize(
    ("imported", "call", "name"),
    [
        (
            "model_checkpointing",
            "model_checkpointing.save_checkpoint(model, path)",
            "save_checkpoint",
        ),
        ("ckpt.io as io", "io.load_into(path, model=model)", "load_into"),
        ("policies", "policies.apply_checkpointing(model)", "apply_checkpointing"),
    ],
)
def test_what_a_missing_package_does_with_states_is_named(
    imported: str, call: str, name: str
) -> None:
    assert named(imported, call) == [f"what {name}() does with a model is not followed"]


@pytest.mark.parametrize(
    ("imported", "call"),
    [
        ("model_checkpointing", "model_checkpointing.save_model(other, path)"),
        ("model_checkpointing", "model_checkpointing.describe(model)"),
        ("copy", "copy.load(model)"),
        ("accelerate", "accelerate.load_checkpoint_in_model(model, path)"),
    ],
)
def test_what_has_nothing_to_do_with_them_is_not(imported: str, call: str) -> None:
    assert named(imported, call) == []


OWN = """\
from tool.wrapping import wrap
IMPORT


def train(net, path):
    model = wrap(net)
    other = net.config
    CALL
"""
WRAPPING = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def wrap(net):
    return FSDP(net)
"""
STEPS = """\
class Steps:
    def __init__(self, model):
        self.net = model
"""


def of_own_package(imported: str, call: str) -> list[str]:
    result, _ = migrate(
        {
            "train.py": OWN.replace("IMPORT", imported).replace("CALL", call),
            "tool/__init__.py": "",
            "tool/wrapping.py": WRAPPING,
            "tool/steps.py": STEPS,
        }
    )
    return [place.why for place in result.not_followed]


@pytest.mark.parametrize(
    ("imported", "call", "name"),
    [
        ("from tool.rollout import Rollout", "Rollout(policy=model)", "Rollout"),
        ("from tool.steps import Trainer", "Trainer(net=model)", "Trainer"),
        ("import tool.rollout as play", "play.run(model)", "run"),
        ("from tool.rollout import *", "Rollout(model)", ""),
    ],
    ids=["no such file", "no such name in the file", "a module of its own", "a star"],
)
def test_what_the_project_says_is_its_own_is_named_whatever_it_is_called(
    imported: str, call: str, name: str
) -> None:
    found = of_own_package(imported, call)
    assert found == ([f"what {name}() does with a model is not followed"] if name else [])


@pytest.mark.parametrize(
    ("imported", "call"),
    [
        ("from tool.rollout import Rollout", "Rollout(other)"),
        ("from tool.steps import Steps", "Steps(model)"),
        ("from others.rollout import Rollout", "Rollout(model)"),
        ("from tool.rollout import Rollout", "Rollout(len(path))"),
    ],
    ids=["no model", "the project has it", "another package", "something else"],
)
def test_what_is_there_or_gets_no_model_is_not(imported: str, call: str) -> None:
    assert of_own_package(imported, call) == []
