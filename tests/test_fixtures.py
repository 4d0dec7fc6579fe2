"""The fixtures that the tool made are what it still makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers import accounting, binding
from tests.helpers.migrating import files, migrate_once
from tests.tools.accept import PROJECTS

ROOT = Path(__file__).parents[1] / "fixtures"
BEFORES = sorted({*ROOT.glob("*/before"), *ROOT.glob("*/*/before")})
REWRITING = sorted(p.parent for p in (ROOT / "rewriting").glob("*/train.py"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# By module, so that the tests of a directory stand together, and see the same run.
every_directory = pytest.mark.parametrize(
    "directory", [*BEFORES, *REWRITING], ids=name, scope="module"
)


@pytest.mark.parametrize("project", PROJECTS, ids=name)
def test_becomes_its_after(project: Path) -> None:
    _, after = migrate_once(files(project / "before"))
    assert after == files(project / "after")


@every_directory
def test_every_reference_has_an_outcome(directory: Path) -> None:
    sources = files(directory)
    result, after = migrate_once(sources)
    assert accounting.unaccounted(sources, result.decisions, after) == []
    assert binding.complaints(sources, after) == []


@every_directory
def test_a_second_run_changes_nothing(directory: Path) -> None:
    _, once = migrate_once(files(directory))
    result, after = migrate_once(once)
    assert not result.changes
    assert not [d for d in result.decisions if d.outcome is not Outcome.LEFT], after
