"""Programs that need more than a short form: what the code tells, and what ``migrate`` finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.attempts.needs import MOST_ATTEMPTS, NEEDS, ROWS, Need, search
from tests.helpers.migrating import migrate

TOLD = [need for need in NEEDS if not need.asked]
ASKED = [need for need in NEEDS if need.asked]


def test_every_program_has_one_row_of_the_table() -> None:
    assert sorted(name for _, _, name in ROWS) == sorted(need.name for need in NEEDS)


@pytest.mark.parametrize("need", TOLD, ids=[need.name for need in TOLD])
def test_where_the_code_tells_the_form_that_holds_is_written(need: Need) -> None:
    result, after = migrate({"train.py": need.program})
    assert not result.count(Outcome.LEFT)
    assert need.holds in "\n".join(after.values())


@pytest.mark.parametrize("need", ASKED, ids=[need.name for need in ASKED])
def test_where_it_does_not_the_short_form_is_written_and_others_are_known(need: Need) -> None:
    result, _ = migrate({"train.py": need.program})
    assert not result.count(Outcome.LEFT)
    further = {
        f"{name} for {decision.code}"
        for decision in result.decisions
        if decision.form is not None
        for name in decision.form.further
    }
    assert need.holds in further


@pytest.mark.train
@pytest.mark.parametrize(
    "name", ["gradients that are dropped between micro-batches", "a state that other code asks for"]
)
def test_the_form_that_holds_is_found(name: str, tmp_path: Path) -> None:
    (need,) = (each for each in NEEDS if each.name == name)
    found = search(need, tmp_path)
    assert found.holds, found.line
    assert (found.attempts == 1) is bool(need.seen)
    assert found.attempts <= MOST_ATTEMPTS


@pytest.mark.train
@pytest.mark.needs
@pytest.mark.parametrize("need", NEEDS, ids=[need.name for need in NEEDS])
def test_every_form_that_holds_is_found(need: Need, tmp_path: Path) -> None:
    found = search(need, tmp_path)
    assert found.holds, found.line
