"""Ranks that give FSDP different models, which FSDP1 and FSDP2 put together in different ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fsdp_migrate.verify.capture.given import Given
from fsdp_migrate.verify.report import text
from fsdp_migrate.verify.report.model import Report, Verdict

from .programs import failed
from .scripts import FSDP1, judged

PROGRAM = """\
@torch.no_grad()
def redrawn(model):
    state = torch.get_rng_state()
    for parameter in model.parameters():
        parameter.uniform_(-0.2, 0.2)
    torch.set_rng_state(state)
    return model


torch.manual_seed(10 + rank)
model = wrap(net())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(6):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", float(loss))
"""
SYNCED = FSDP1.replace("use_orig_params", "sync_module_states=True, use_orig_params")


@pytest.mark.train
def test_models_that_differ_from_rank_to_rank_are_compared_from_the_same_weights(
    tmp_path: Path,
) -> None:
    report = judged(tmp_path, PROGRAM)
    assert report.verdict is Verdict.SAME, text.render(report)
    assert any("every rank made a model of its own" in gate.says for gate in report.gates)


@pytest.mark.train
@pytest.mark.parametrize(
    ("before", "replaced", "cause"),
    [
        (SYNCED, (), "start"),
        (FSDP1, (("torch.manual_seed(10 + rank)", "torch.manual_seed(10 + 2 * rank)"),), "start"),
        (FSDP1, (("lr=1e-2", "lr=2e-2"),), "settings"),
        (FSDP1, (("model = wrap(net())", "model = redrawn(wrap(net()))"),), "start"),
    ],
    ids=["a broadcast that is lost", "other models", "something else", "drawn again behind it"],
)
def test_a_difference_is_still_one(
    tmp_path: Path, before: str, replaced: tuple[tuple[str, str], ...], cause: str
) -> None:
    report: Report = judged(tmp_path, PROGRAM, *replaced, before=before)
    assert (report.verdict, failed(report)) == (Verdict.DIFFERENT, cause), text.render(report)


@pytest.mark.train
def test_ranks_that_are_seeded_alike_start_as_they_did(tmp_path: Path) -> None:
    report = judged(tmp_path, PROGRAM.replace("10 + rank", "10"))
    assert report.verdict is Verdict.SAME, text.render(report)
    assert not any("model of its own" in gate.says for gate in report.gates)


@pytest.fixture
def given() -> Given:
    session: Any = None  # what is given is noted without it
    return Given(session)


def test_parts_before_the_whole_are_the_whole(given: Given) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    model[1].bias = model[0].bias  # in two places, and one parameter
    parts = Given(given.session)
    calls: list[list[nn.Module]] = [[model[1]], [model[0], model[1]], [model]]
    for modules in calls:
        parts.add(modules)
    given.add([model])
    assert given.total
    assert parts.total == given.total
    other = Given(given.session)
    other.add([nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))])
    assert other.total != given.total


def test_parameters_without_values_tell_nothing(given: Given) -> None:
    given.add([nn.Sequential(nn.Linear(2, 3), nn.LazyLinear(2))])
    assert given.total is None
    given.add([nn.Linear(2, 2)])
    assert given.total is None
