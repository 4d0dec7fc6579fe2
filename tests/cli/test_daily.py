"""What people meet every day: taking back, waiting, completion, hooks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.discovery import progress
from tests.helpers.commandline import ROOT, Command
from tests.helpers.terminal import at_terminal

WRAPS = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(net)\n"
SHARDS = "from torch.distributed.fsdp import fully_shard\n\nmodel = fully_shard(net)\n"


@pytest.fixture
def done(here: Path, run: Command) -> Path:
    """A project that was rewritten."""
    for name in ("a.py", "b.py", "c.py"):
        (here / name).write_text(WRAPS)
    assert run("rewrite", ".").code == 0
    return here


# -- undo -----------------------------------------------------------------------------------------


def test_files_are_put_back_alone(done: Path, run: Command) -> None:
    answer = run("undo", "a.py", "b.py")
    assert answer.code == 0
    assert answer.out == "restored a.py\nrestored b.py\n"
    assert "1 more of that rewrite: fsdp-migrate undo puts them back" in answer.err
    assert [(done / n).read_text() for n in ("a.py", "b.py", "c.py")] == [WRAPS, WRAPS, SHARDS]
    (done / "new.py").write_text("")
    refused = run("undo", "new.py")
    assert refused.code == 2
    assert "new.py: the last rewrite did not write it" in refused.err
    assert run("undo").out == "restored c.py\n"
    assert run("undo").code == 2


def test_a_file_that_was_deleted_comes_back_by_its_name(done: Path, run: Command) -> None:
    (done / "a.py").unlink()
    assert run("undo", "a.py").code == 2
    assert run("undo", "--force", "a.py").code == 0
    assert (done / "a.py").read_text() == WRAPS


def test_force_says_what_is_lost(done: Path, run: Command) -> None:
    (done / "b.py").write_text(f"{SHARDS}# mine\n")
    refused = run("undo")
    assert refused.code == 2
    assert "b.py: changed since the rewrite, so nothing was put back; with --force" in refused.err
    assert (done / "a.py").read_text() == SHARDS
    forced = run("undo", "--force")
    assert forced.code == 0
    assert forced.err == "lost: what was changed since the rewrite in b.py\n"
    assert {(done / n).read_text() for n in ("a.py", "b.py", "c.py")} == {WRAPS}


# -- progress -------------------------------------------------------------------------------------


def test_progress_has_phase_count_and_name() -> None:
    said = [str(progress.now) for _ in progress.through("reading", ["a.py", "b.py"])]
    assert said == ["reading 1 of 2: a.py", "reading 2 of 2: b.py"]
    assert str(progress.now) == ""


# A run as long as one of a large repository, however quick the machine is that tests it.
LONG_RUN = """
import time
from fsdp_migrate.cli import console
from fsdp_migrate.discovery import progress

with console.waiting("checking"):
    for _ in progress.through("looking through", ["m1.py", "m2.py"]):
        time.sleep(1)
"""


def test_progress_is_shown_on_a_terminal(here: Path) -> None:
    answer = at_terminal(here, answers="", colour=True, program=("-c", LONG_RUN))
    assert "checking: looking through 1 of 2: m1.py" in answer.out
    assert "checking: looking through 2 of 2: m2.py" in answer.out


def test_progress_is_not_shown_in_a_pipe(here: Path, run: Command) -> None:
    (here / "a.py").write_text(WRAPS)
    assert run("check").err == ""


# -- completion -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "found"),
    [("ch", "check"), ("check --form", "--format"), ("undo --f", "--force")],
)
def test_words_are_completed(words: str, found: str) -> None:
    line = f"fsdp-migrate {words}"
    answer = subprocess.run(
        [sys.executable, "-m", "fsdp_migrate"],
        env={
            "PYTHONPATH": str(ROOT),
            "_FSDP_MIGRATE_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(line.count(" ")),
        },
        capture_output=True,
        check=True,
    )
    assert found in answer.stdout.decode().split()


# -- hooks ----------------------------------------------------------------------------------------


def test_the_action_leaves_the_callers_python_alone() -> None:
    text = (ROOT / "action.yml").read_text()
    assert "update-environment: false" in text
    commands = [line for line in text.split("\n") if "install --quiet" in line or " check " in line]
    own = [line for line in commands if '"$RUNNER_TEMP/fsdp-migrate/bin/' in line]
    assert len(own) == 3


def test_hooks_are_commands_that_run(here: Path, run: Command) -> None:
    text = (ROOT / ".pre-commit-hooks.yaml").read_text()
    entries = re.findall(r"(?m)^  entry: fsdp-migrate (.*)$", text)
    assert len(entries) == 3
    (here / "a.py").write_text(WRAPS)
    assert [run(*entry.split(), ".").code for entry in entries] == [1, 0, 0]
    assert (here / "a.py").read_text() == SHARDS
