"""The guide from FSDP1 to FSDP2 says what happens; that is asked of torch."""

from __future__ import annotations

import re

import pytest

from tests.tools import documents
from tests.training import checks, guided
from tests.training.programs import Launcher


@pytest.mark.train
@pytest.mark.parametrize("name", guided.CHECKS)
def test_it_is_so(name: str, launcher: Launcher) -> None:
    launcher.function("tests.training.guided", "run", name)


def test_what_fails_without_an_error_names_what_shows_it() -> None:
    text = documents.GUIDE.read_text(encoding="utf-8").partition("## What fails without")[2]
    rows = re.findall(r"^\| .* \| `(\w+)` \|$", text.partition("\n## ")[0], re.MULTILINE)
    assert len(rows) > 10
    assert set(rows) <= {*checks.CHECKS, *guided.CHECKS}
