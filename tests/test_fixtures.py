"""The fixtures that the tool made are what it still makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers import accounting, binding
from tests.helpers.migrating import files, migrate, migrated
from tests.tools.accept import PROJECTS

ROOT = Path(__file__).parents[1] / "fixtures"
BEFORES = sorted({*ROOT.glob("*/before"), *ROOT.glob("*/*/before")})
REWRITING = sorted(p.parent for p in (ROOT / "rewriting").glob("*/train.py"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("project", PROJECTS, ids=name)
def test_becomes_its_after(project: Path) -> None:
    assert migrated(project / "before") == files(project / "after")


@pytest.mark.parametrize("directory", [*BEFORES, *REWRITING], ids=name)
def test_every_reference_has_an_outcome(directory: Path) -> None:
    sources = files(directory)
    result, after = migrate(sources)
    assert accounting.unaccounted(sources, result.decisions, after) == []
    assert binding.complaints(sources, after) == []


@pytest.mark.parametrize("directory", [*BEFORES, *REWRITING], ids=name)
def test_a_second_run_changes_nothing(directory: Path) -> None:
    result, after = migrate(migrated(directory))
    assert not result.changes
    assert not [d for d in result.decisions if d.outcome is not Outcome.LEFT], after
