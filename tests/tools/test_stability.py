"""What a run says of a site does not depend on what means nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings, strategies

from tests.helpers.migrating import migrate
from tests.tools import stability

PROGRAMS = Path(__file__).parents[2] / "fixtures" / "programs"
# A model that several files hand on to one another in a circle, and who calls them is asked of the
# model itself.
CIRCLE = {
    "train.py": """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from loops import Loop, Other
from net import Net


def main(flag):
    model = FSDP(Net())
    loop = Loop(model) if flag else Other(model)
    loop.again(loop)
""",
    "net.py": """\
import torch


class Net(torch.nn.Module):
    def forward(self, x):
        return x
""",
    "loops.py": """\
from states import keep


class Loop:
    def __init__(self, model):
        self.model = model

    def again(self, other):
        other.model = self.inner(other)
        keep(self, other)

    def inner(self, other):
        return other.outer(self)

    def outer(self, other):
        return self.model if other is None else other.inner(self)


class Other(Loop):
    def inner(self, other):
        model = other.outer(self)
        return model
""",
    "states.py": """\
import torch


def keep(loop, other):
    if other is not None:
        keep(other, None)
    torch.save(loop.model.state_dict(), "model.pt")
    with loop.model.no_sync():
        other.again(loop)
""",
}


def _said(files: dict[str, str]) -> list[str]:
    result, _ = migrate(files, edit=False)
    return sorted(
        f"{d.site.module.display}:{d.site.module.position(d.site.node)} {d.code} {d.outcome}"
        f" {d.message} {d.help}"
        for d in result.decisions
        if d.site.module.display in CIRCLE
    )


@settings(max_examples=12, deadline=None)
@given(
    strategies.permutations(sorted(CIRCLE)),
    strategies.sets(strategies.sampled_from(("a.py", "z.py", "below/m.py"))),
)
def test_neither_order_nor_a_file_that_does_nothing_counts(
    order: list[str], added: set[str]
) -> None:
    first = _said(CIRCLE)
    assert any("FSDP302" in line for line in first)
    assert any("FSDP402" in line for line in first)
    others = dict.fromkeys(sorted(added), stability.WORDS)
    assert _said({**others, **{name: CIRCLE[name] for name in order}}) == first


@pytest.mark.parametrize("name", ["lifecycle", "hub"])
def test_of_a_program_the_same_is_said_wherever_it_lies(name: str) -> None:
    assert stability.differing(PROGRAMS / name / "before") == {}


def test_more_files_change_nothing_in_a_program_that_is_read_whole() -> None:
    assert stability.differing(PROGRAMS / "lifecycle" / "before", [stability.MORE]) == {}


def test_a_difference_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared is not empty, and tells runs apart."""
    program = PROGRAMS / "lifecycle" / "before"
    assert len(stability.decided(program)) > 10
    said = iter(({"a.py:1": "one"}, {"a.py:1": "two"}))
    monkeypatch.setattr(stability, "changed", lambda *_: next(said))
    [(change, lines)] = stability.differing(program, ["order"]).items()
    assert change == "order"
    assert lines == ["@@ -1 +1 @@", "-a.py:1 one", "+a.py:1 two"]
