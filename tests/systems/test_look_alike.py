"""A package with an FSDP of its own, which is not torch's; see docs/systems.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.__main__ import run
from fsdp_migrate.cli import exit_codes
from tests.helpers.migrating import files, migrate
from tests.training.programs import FIXTURES, Launcher

PROGRAM = FIXTURES / "systems" / "look_alike"
TOLERANCE = {"same": 1e-6, "split": 1e-6}


def test_zero_edits() -> None:
    before = files(PROGRAM)
    result, after = migrate(before)
    assert after == before
    assert not result.decisions


def test_it_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(PROGRAM)]) == exit_codes.GOOD
    [line] = capsys.readouterr().out.splitlines()
    assert "fully_shard of fsdp" in line
    assert "train.py:9" in line
    assert line.endswith("not torch's FSDP")


@pytest.mark.train
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("data", ["same", "split"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_train_as_one_does(ranks: int, data: str, optimizer: str, launcher: Launcher) -> None:
    args = ("--data", data, "--optimizer", optimizer)
    alone, many = (launcher.script(PROGRAM / "train.py", *args, ranks=n) for n in (1, ranks))
    for word in ("step", "layer"):
        for one, other in zip(alone.numbers(word), many.numbers(word), strict=True):
            assert abs(one - other) <= TOLERANCE[data] * max(1, abs(one))


def test_a_name_of_another_project_is_not_said_to_be_anything(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("from elsewhere.compat import fully_shard\n")
    assert run(["check", str(tmp_path)]) == exit_codes.GOOD
    assert capsys.readouterr().out == "no FSDP1 found in 1 file\n"
