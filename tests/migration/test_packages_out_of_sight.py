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
