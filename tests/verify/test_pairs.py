"""Correct migrations pass, whatever the model, precision, number of ranks and seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.verify.launch.warm import WarmServer
from fsdp_migrate.verify.report import text

from .pairs import PAIRS, Pair, is_right, passes

pytestmark = [pytest.mark.train, pytest.mark.pairs]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_a_correct_migration_passes(pair: Pair, tmp_path: Path, server: WarmServer) -> None:
    if pair.program == "programs/hub":
        pytest.importorskip("transformers")
    report = passes(pair, tmp_path / "after", server=server)
    assert is_right(pair, report), text.render(report)
