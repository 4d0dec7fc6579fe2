"""Every planted defect is caught, and its cause is named first."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.verify.launch.warm import WarmServer
from fsdp_migrate.verify.report import text

from .mutants import MUTANTS, Mutant, plant

pytestmark = [pytest.mark.train, pytest.mark.mutants]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_planted_defect_is_named(
    mutant: Mutant, tmp_path: Path, server: WarmServer, baselines: Path
) -> None:
    caught = plant(mutant, tmp_path / "after", server=server, cache=baselines)
    assert caught.right, f"{caught.first} instead of {mutant.named}\n{text.render(caught.report)}"
