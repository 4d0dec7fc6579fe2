"""Our side of axolotl's table; ``test_released.py`` asks axolotl."""

from __future__ import annotations

import pytest

from tests.configurations.axolotl_table import ROWS, Row
from tests.tools import documents


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
def test_our_outcome_is_the_rows(row: Row) -> None:
    outcome, after = row.ours()
    assert outcome == row.outcome
    changes = outcome in {"rewritten", "review"} or bool(row.hand)
    assert (after != row.before) == changes


def test_the_table_of_axolotl_is_current() -> None:
    text = documents.CONFIGURATIONS.read_text(encoding="utf-8")
    assert documents.with_axolotl(text) == text
