"""Projects that name functions instead of a script."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.verify.entries import Entries, EntryError
from tests.helpers.commandline import answering

from .programs import PROGRAMS

MODEL = {"model": "a.b:build", "shard": "a:Kind.wrap"}


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"shard": "a:b"}, 'needs model = "module:function"'),
        ({**MODEL, "sharde": "a:b"}, "did you mean 'shard'"),
        ({**MODEL, "colour": 1}, "it has model, shard"),
        ({**MODEL, "batch": "a.b"}, "batch must be"),
        ({**MODEL, "optimizer": "adam"}, "adamw or sgd, not 'adam'"),
        ({**MODEL, "steps": 0}, "steps must be a number of at least 1"),
        ({**MODEL, "steps": True}, "steps must be a number of at least 1"),
        ({**MODEL, "lr": "1"}, "lr must be a positive number"),
        ({**MODEL, "path": 1}, "path must be a directory"),
    ],
)
def test_a_wrong_table_is_explained(table: dict[str, Any], says: str) -> None:
    with pytest.raises(EntryError, match="verify]") as caught:
        Entries.read(table)
    assert says in str(caught.value)


def test_both_optimizers_are_tried_unless_one_is_named() -> None:
    assert Entries.read(MODEL).variants == (("--optimizer", "adamw"), ("--optimizer", "sgd"))
    assert Entries.read({**MODEL, "optimizer": "a:make"}).variants == ((),)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The library, which is the working directory."""
    shutil.copytree(PROGRAMS / "entries" / "before", tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


@pytest.mark.train
def test_functions_of_a_project_are_trained_with_both_optimizers(
    project: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    answer = answering(capfdbinary)("verify")
    assert answer.code == 0, answer.out + answer.err
    verdict = " ".join(answer.out[answer.out.index("VERDICT") :].split())
    assert "steps 1 to 4 of a program that went on, 2 ranks" in verdict
    assert "with --optimizer adamw and with --optimizer sgd" in verdict
    assert "2 backward calls each" in answer.out
    assert "netpack.model:build" in answer.out
    assert sorted(p.name for p in project.iterdir()) == ["netpack", "pyproject.toml"]


@pytest.mark.train
def test_a_defect_is_named(
    project: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    after = tmp_path / "after"
    shutil.copytree(project, after)
    testing = after / "netpack" / "testing.py"
    source = testing.read_text()
    testing.write_text(source.replace(".mean()", ".mean() * 1.0001"))
    answer = answering(capfdbinary)("verify", "--after", after)
    assert answer.code == 1
    assert "loss, first step" in answer.out[answer.out.index("VERDICT") :]


def test_neither_a_script_nor_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    answer = answering(capfdbinary)("verify")
    assert answer.code == 2
    assert "give a SCRIPT, or name functions in [tool.fsdp-migrate.verify]" in answer.err
