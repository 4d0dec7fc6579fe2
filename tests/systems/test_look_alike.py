"""A package with an FSDP of its own, which is not torch's; see docs/systems.md."""

from __future__ import annotations

import shutil
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


@pytest.mark.train
def test_a_sum_in_place_of_the_mean_is_seen(tmp_path: Path, launcher: Launcher) -> None:
    """The comparison above fails where gradients are added up and not averaged."""
    shutil.copytree(PROGRAM, tmp_path / "own", ignore=shutil.ignore_patterns("__pycache__"))
    reduces = tmp_path / "own" / "fsdp" / "flat_parameter.py"
    source = reduces.read_text(encoding="utf-8")
    assert source.count("(total / ctx.world)") == 1
    reduces.write_text(source.replace("(total / ctx.world)", "total"), encoding="utf-8")
    alone = launcher.script(PROGRAM / "train.py", "--optimizer", "SGD", ranks=1).numbers("layer")
    many = launcher.script(tmp_path / "own" / "train.py", "--optimizer", "SGD").numbers("layer")
    assert any(abs(x - y) > 1e-4 * max(1, abs(x)) for x, y in zip(alone, many, strict=True))


def test_a_name_of_another_project_is_not_said_to_be_anything(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("from elsewhere.compat import fully_shard\n")
    assert run(["check", str(tmp_path)]) == exit_codes.GOOD
    assert capsys.readouterr().out == "no FSDP1 found in 1 file\n"
