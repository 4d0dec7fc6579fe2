"""Guards in functions that run while a file is imported: the models stay FSDP1 instead."""

from __future__ import annotations

import pytest

from fsdp_migrate.migration.engine import Options
from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

PARTIAL = Options(partial=True)

WRAPPER = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel


def hook(state, handle, *unused):
    pass


class Own(FullyShardedDataParallel):
    @classmethod
    def override(cls):
        torch.distributed.fsdp._runtime_utils._post_backward_hook = hook
"""
TRAIN = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

import wrapper


def main(own):
    model = nn.Linear(4, 4)
    return wrapper.Own(model) if own else FSDP(model)


main(True)
"""
STOPS = "raise NotImplementedError"


@pytest.mark.parametrize(
    "called",
    [
        "Own.override()",
        "def install():\n    Own.override()\n\n\ninstall()",
        "if torch.cuda.is_available():\n    Own.override()",
    ],
    ids=["the method", "by a function", "under a condition"],
)
def test_what_an_import_calls_gets_no_guard(called: str) -> None:
    result, after = migrate({"wrapper.py": f"{WRAPPER}\n\n{called}\n", "train.py": TRAIN}, PARTIAL)
    assert STOPS not in after["wrapper.py"]
    problems = {d.guard.problem for d in result.decisions} - {""}
    assert problems == {"it runs when the module is imported"}
    assert after["train.py"] == TRAIN
    assert result.count(Outcome.LEFT) == len(result.decisions)


@pytest.mark.parametrize(
    ("wrapper", "train"),
    [
        (WRAPPER, TRAIN.replace("main(True)", "wrapper.Own.override()\nmain(True)")),
        (f"{WRAPPER}\n\nif __name__ == '__main__':\n    Own.override()\n", TRAIN),
        (f"{WRAPPER}\n\nINSTALL = Own.override\n", TRAIN),
    ],
    ids=["the script calls it", "the file as a script", "nothing calls it yet"],
)
def test_what_makes_the_model_or_is_called_later_gets_one(wrapper: str, train: str) -> None:
    _, after = migrate({"wrapper.py": wrapper, "train.py": train}, PARTIAL)
    assert STOPS in after["wrapper.py"]
    assert "FSDP(" not in after["train.py"]


def test_a_file_that_imports_the_script_changes_nothing() -> None:
    script = TRAIN.replace("main(True)", "wrapper.Own.override()\nmain(True)")
    _, after = migrate(
        {"wrapper.py": WRAPPER, "train.py": script, "again.py": "import train\n"}, PARTIAL
    )
    assert STOPS in after["wrapper.py"]


def test_what_stands_behind_a_guard_has_its_marker_alone() -> None:
    private = "torch.distributed.fsdp._runtime_utils"
    body = WRAPPER + f"        {private}._pre_forward = hook\n        if unused:\n"
    body += f"            {private}._unshard = hook\n"
    body = body.replace("def override(cls)", "def override(cls, unused=False)")
    _, after = migrate({"wrapper.py": body, "train.py": TRAIN}, PARTIAL)
    text = after["wrapper.py"]
    assert text.count(STOPS) == 1
    assert text.count("# TODO(fsdp-migrate FSDP499)") == 3
    _, again = migrate(after, PARTIAL)
    assert again == after


def test_what_another_way_leads_to_has_a_guard_of_its_own() -> None:
    private = "torch.distributed.fsdp._runtime_utils"
    other = (
        f"\n    @classmethod\n    def more(cls, early):\n        if early:\n            {private}."
    )
    other += f"_unshard = hook\n        {private}._reshard = hook\n"
    _, after = migrate({"wrapper.py": WRAPPER + other, "train.py": TRAIN}, PARTIAL)
    assert after["wrapper.py"].count(STOPS) == 3
