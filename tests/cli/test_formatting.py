"""``rewrite --format``: the project's formatter on what is changed, on nothing else, and undone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fsdp_migrate.cli import formatting
from tests.helpers.commandline import Command

CHANGED = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(model):
    x = {  'a':1 }
    return FSDP(model)
"""
OTHER = "x = {  'a':1 }\n"
# Puts texts into double quotes; given an argument --fail or --break, does what that says.
FAKE = """\
#!{python}
import sys
text = sys.stdin.buffer.read().decode()
{what}
sys.stdout.buffer.write(text.replace("{{  'a':1 }}", '{{"a": 1}}').encode())
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    (project / "pyproject.toml").write_text("[tool.black]\nline-length = 90\n")
    (project / "train.py").write_text(CHANGED)
    (project / "other.py").write_text(OTHER)
    return project


def install(
    here: Path, monkeypatch: pytest.MonkeyPatch, what: str = "", name: str = "black"
) -> None:
    directory = here.parent / "bin"
    directory.mkdir()
    program = directory / "black"
    program.write_text(FAKE.format(python=sys.executable, what=what))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory))


def test_changed_files_are_formatted_and_no_others(
    here: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(here, monkeypatch)
    answer = run("rewrite", ".", "--format")
    assert answer.code == 0, answer.err
    text = (here / "train.py").read_text()
    assert '    x = {"a": 1}\n' in text
    assert "fully_shard(model)" in text
    assert (here / "other.py").read_text() == OTHER
    run("undo")
    assert (here / "train.py").read_text() == CHANGED


def test_without_the_option_nothing_is_formatted(
    here: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(here, monkeypatch)
    run("rewrite", ".")
    assert "    x = {  'a':1 }\n" in (here / "train.py").read_text()


def test_the_dry_run_shows_it_formatted(
    here: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(here, monkeypatch)
    assert '+    x = {"a": 1}' in run("rewrite", ".", "--format", "--dry-run").out
    assert (here / "train.py").read_text() == CHANGED


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("sys.exit('no such thing\\nmore')", "black: no such thing"),
        ("sys.exit(3)", "black: ended with 3"),
        ("text = text.replace('model', 'net')", "black: changed more than the layout"),
        ("text = '('", "black: changed more than the layout"),
        ("text = ''", "black: changed more than the layout"),
    ],
)
def test_what_fails_leaves_the_unformatted_result(
    here: Path, run: Command, monkeypatch: pytest.MonkeyPatch, what: str, said: str
) -> None:
    install(here, monkeypatch, what)
    answer = run("rewrite", ".", "--format")
    assert answer.code == 0
    assert f"note: train.py is not formatted: {said}" in answer.err
    text = (here / "train.py").read_text()
    assert "    x = {  'a':1 }\n" in text
    assert "fully_shard(model)" in text


def test_a_formatter_that_hangs_is_given_up(
    here: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(here, monkeypatch, "import time; time.sleep(30)")
    monkeypatch.setattr(formatting, "SECONDS", 1)
    assert "gave no answer in 1 seconds" in run("rewrite", ".", "--format").err
    assert "fully_shard(model)" in (here / "train.py").read_text()


def test_one_that_is_not_installed_is_named(
    here: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(here.parent))
    answer = run("rewrite", ".", "--format")
    assert "note: not formatted: black is not installed" in answer.err
    assert "fully_shard(model)" in (here / "train.py").read_text()


def test_without_a_formatter_of_the_projects_that_is_said(here: Path, run: Command) -> None:
    (here / "pyproject.toml").write_text("")
    answer = run("rewrite", ".", "--format")
    assert "note: not formatted: the project is set up for neither ruff nor black" in answer.err
    assert "fully_shard(model)" in (here / "train.py").read_text()


def test_a_program_of_the_working_directory_is_not_run(
    here: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = here.parent / "ran"
    (here / "black").write_text(f"#!/bin/sh\ntouch '{ran}'\n")
    (here / "black").chmod(0o755)
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.pathsep}{here.parent}")
    answer = run("rewrite", ".", "--format")
    assert "black is not installed" in answer.err
    assert not ran.exists()


def test_where_nothing_changes_no_formatter_runs(
    here: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "train.py").write_text(OTHER)
    install(here, monkeypatch, "sys.exit('ran')")
    assert "ran" not in run("rewrite", ".", "--format").err


def test_requirements_are_not_given_to_it(
    here: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "requirements.txt").write_text("torch>=2.0\n")
    install(here, monkeypatch)
    run("rewrite", ".", "--format")
    assert (here / "requirements.txt").read_text() == "torch>=2.7\n"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_ruff_itself(here: Path, run: Command, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    programs = Path(sys.executable).parent  # ruff is one of the development tools
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    (here / "pyproject.toml").write_text("[tool.ruff]\nline-length = 60\n")
    (here / "train.py").write_bytes(CHANGED.replace("\n", end).encode())
    answer = run("rewrite", ".", "--format")
    assert "not formatted" not in answer.err
    data = (here / "train.py").read_bytes().decode()
    assert f'    x = {{"a": 1}}{end}' in data
    assert data.count(end) == data.count("\n")
    assert not list(here.glob(".ruff_cache"))
    assert "no FSDP1" in run("rewrite", ".", "--format").out
