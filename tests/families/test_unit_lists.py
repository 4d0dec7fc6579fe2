"""Flat parameters of units in lists that ``torch._foreach_*`` changes, and in other lists."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

SOURCE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def update(net, twin, decay):
    student, teacher = FSDP(net), FSDP(twin)
    new = []
    old = []
    for ours, theirs in zip(FSDP.fsdp_modules(student), FSDP.fsdp_modules(teacher)):
        new += ours.params
        old += theirs.params
    torch._foreach_mul_(old, decay)
    torch._foreach_add_(old, new, alpha=1 - decay)
"""
OTHER_USES = {
    "what tells them apart": ("(old, decay)\n", "(old, decay)\n    print(old[0].numel())\n"),
    "a list that is handed on": ("(old, decay)\n", "(old, decay)\n    record(old)\n"),
    "a list that is given back": ("alpha=1 - decay)\n", "alpha=1 - decay)\n    return old\n"),
    "a list that has more": ("old = []", "old = [torch.zeros(1)]"),
    "a list of the file's": ("    old = []\n", "    global old\n    old = []\n"),
    "a list that is kept": ("old += theirs.params", "teacher.listed += theirs.params"),
    "one that is shown": ("old += theirs.params", "print(theirs.params)"),
}


def decided(source: str) -> tuple[set[Outcome], str]:
    result, after = migrate({"run.py": source})
    found = {d.outcome for d in result.decisions if d.site.construct.attribute == "params"}
    return found, after["run.py"]


@pytest.mark.parametrize("added", ["old += theirs.params", "old.extend(theirs.params)"])
def test_what_is_changed_as_one_goes_parameter_by_parameter(added: str) -> None:
    found, after = decided(SOURCE.replace("old += theirs.params", added))
    assert found == {Outcome.REVIEW}
    assert "new += unit_parameters(ours)" in after
    assert added.replace("theirs.params", "unit_parameters(theirs)") in after
    assert ".params" not in after


@pytest.mark.parametrize("use", OTHER_USES)
def test_other_uses_are_left(use: str) -> None:
    old, new = OTHER_USES[use]
    assert old in SOURCE
    found, after = decided(SOURCE.replace(old, new, 1))
    assert Outcome.LEFT in found
    assert "theirs.params" in after


def test_lists_that_begin_together() -> None:
    found, _ = decided(SOURCE.replace("    new = []\n    old = []\n", "    new, old = [], []\n"))
    assert found == {Outcome.REVIEW}
    found, _ = decided(SOURCE.replace("    new = []\n    old = []\n", "    new, old = [], [1]\n"))
    assert Outcome.LEFT in found
