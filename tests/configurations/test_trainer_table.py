"""transformers' own Trainer trains every row of the table, as it is and as we write it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_migrate.cli import parser
from tests.configurations import trainer_runs
from tests.configurations.trainer_runs import Trained, lay, rewrite, train
from tests.configurations.trainer_table import CALL, FILE, NAMED, OTHER, ROWS, SAME, Row
from tests.configurations.writing import unmarked
from tests.tools import documents

Runs = Callable[[Row, str], Trained]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """What each row is trained as before, and in each spelling after; all are run at once."""
    found: dict[tuple[int, str], Trained] = {}

    def of(row: Row, spelling: str) -> Trained:
        if not found:
            scratch = tmp_path_factory.mktemp("rows")
            folders = {}
            for number, each in enumerate(ROWS):
                for name in ("", *(each.spellings if changed(each) else ())):
                    folder = folders[number, name] = scratch / f"{number}-{len(folders)}"
                    lay(folder, each.files(name or CALL))
                    if name:
                        rewrite(folder)
            found.update(zip(folders, train(folders.values()), strict=True))
        return found[ROWS.index(row), spelling]

    return of


def changed(row: Row) -> bool:
    return row.outcome not in {"", "left"}


SPELLED = [(row, spelling) for row in ROWS for spelling in row.spellings]


@pytest.mark.parametrize(("row", "spelling"), SPELLED, ids=lambda v: getattr(v, "title", v))
def test_our_outcome_is_the_rows(row: Row, spelling: str, tmp_path: Path) -> None:
    before = row.files(spelling)
    lay(tmp_path / "a", before)
    assert rewrite(tmp_path / "a") == row.outcome
    if not changed(row):
        after = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "a").iterdir()}
        assert {name: unmarked(text) for name, text in after.items()} == before


@pytest.mark.train
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
def test_the_trainer_does_what_the_row_says(row: Row, ran: Runs) -> None:
    before = ran(row, "")
    assert before.text == row.runs, before.said
    afters = [name for name in row.spellings if changed(row)]
    for name in afters:
        after = ran(row, name)
        assert after.text == row.after, after.said
        assert (SAME if trainer_runs.same(before, after) else OTHER) == row.losses, name
    assert bool(afters) == bool(row.after)


def test_the_table_of_the_trainer_is_current() -> None:
    text = documents.CONFIGURATIONS.read_text(encoding="utf-8")
    assert documents.with_trainer(text) == text


def test_a_file_is_done_with_once_it_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay(tmp_path / "a", ROWS[0].files(FILE))
    assert rewrite(tmp_path / "a") == "rewritten"
    written = json.loads((tmp_path / "a" / NAMED).read_text())
    assert written["version"] == 2
    assert written["reshard_after_forward"] is True
    assert parser.run(["check", str(tmp_path / "a")]) == 0
    assert "no FSDP1 found" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{", "[1]", '{"version": {}}', ""])
def test_a_file_that_is_not_plain_is_not_read(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay(tmp_path / "a", {**ROWS[0].files(FILE), NAMED: text})
    parser.run(["check", str(tmp_path / "a")])
    assert "the file that fsdp_config names was not read" in capsys.readouterr().out
