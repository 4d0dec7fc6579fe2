"""Every row of the table, and accelerate run on what comes of it."""

from __future__ import annotations

import pytest

from fsdp_migrate.configurations.frameworks import accelerate
from tests.configurations import running
from tests.configurations.table import ROWS, Row
from tests.tools import documents


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
def test_accelerate_does_what_the_row_says(row: Row) -> None:
    settings = running.settings_of(row.config)
    changes = accelerate.migrate(settings)
    assert running.outcome(changes) == row.outcome
    if row.runs:
        assert running.launched(running.migrated(row.config)) == row.runs
    if row.outcome == "left":
        assert running.migrated(row.config) == row.config


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
def test_a_second_time_changes_nothing(row: Row) -> None:
    if row.outcome == "left":
        return
    after = running.applied(
        settings := running.settings_of(row.config), accelerate.migrate(settings)
    )
    again = running.applied(after, accelerate.migrate(after))
    assert again == after


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
def test_what_ran_keeps_its_sharding_and_its_kind_of_checkpoint(row: Row) -> None:
    before = running.launched(row.config).split(" ")
    if row.outcome == "left" or not row.runs or "Error" in before[0]:
        return
    after = row.runs.split(" ")
    strategies = {"SHARD_GRAD_OP": "keep", "_HYBRID_SHARD_ZERO2": "keep", "keep": "keep"}
    assert after[1] == strategies.get(before[1], "reshard")
    assert after[2] == before[2]
    assert ("HYBRID" in before[1] and bool(row.file)) == ("DP_REPLICATE=2" in after)


def test_every_change_names_a_setting_that_stands_there_once() -> None:
    for row in ROWS:
        settings = running.settings_of(row.config)
        changes = accelerate.migrate(settings)
        old = [change.old for change in changes if change.old]
        assert len(set(old)) == len(old)
        assert set(old) <= set(settings)
        added = [change.new[0] for change in changes if change.new]
        assert len(set(added)) == len(added)


def test_the_table_of_configurations_is_current() -> None:
    text = documents.CONFIGURATIONS.read_text(encoding="utf-8")
    assert documents.with_configurations(text) == text
