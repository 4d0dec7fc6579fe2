"""``rewrite --review`` at a terminal: what is asked, and what is written of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.migration.engine import Options
from tests.helpers.commandline import ROOT
from tests.helpers.migrating import migrate
from tests.helpers.terminal import at_terminal

TWO = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def actor(net, path):
    model = FSDP(net)
    model.clip_grad_norm_(1.0)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        torch.save(model.state_dict(), path)
    return model


def critic(net):
    model = FSDP(net)
    # 1
    # 2
    # 3
    # 4
    # 5
    # 6
    # 7
    model.clip_grad_norm_(2.0)
    return model
"""
LEFT = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Wrapped(FSDP):
    def state_dict(self):
        return super().state_dict()
"""
SPLIT = {
    "build.py": """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    return FSDP(net)
""",
    "loop.py": """\
from build import build


def step(net):
    model = build(net)
    return model.clip_grad_norm_(1.0)
""",
}
ACTOR = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
CRITIC = "torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)"


def lay(directory: Path, files: dict[str, str]) -> dict[str, str]:
    (directory / "pyproject.toml").write_text("")
    for name, text in files.items():
        (directory / name).write_text(text)
    return files


def now(directory: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in sorted(directory.glob("*.py"))}


def test_what_is_taken_in_full_is_what_rewrite_does(tmp_path: Path) -> None:
    given = lay(tmp_path, {"a.py": TWO, "b.py": LEFT})
    answer = at_terminal(tmp_path, "rewrite", ".", "--review", answers="yyyyy")
    assert answer.code == 1, "one site is left"
    assert now(tmp_path) == migrate(given)[1]
    assert at_terminal(tmp_path, "undo", answers="").code == 0
    assert now(tmp_path) == given


def test_one_refusal_leaves_a_whole_migration(tmp_path: Path) -> None:
    lay(tmp_path, {"a.py": TWO})
    answer = at_terminal(tmp_path, "rewrite", ".", "--review", answers="yyn")
    text = now(tmp_path)["a.py"]
    assert ACTOR in text
    assert text.count("fully_shard(net)") == 1
    assert text.count("model = FSDP(net)") == 1
    assert "model.clip_grad_norm_(2.0)" in text
    compile(text, "a.py", "exec")
    assert "taken whole or not at all: the model made at a.py:14" in answer.out
    assert "FSDP(): refused in review" in answer.out
    assert "FSDP.clip_grad_norm_: refused in review" in answer.out
    assert answer.code == 1


def test_a_refusal_in_one_file_leaves_the_other(tmp_path: Path) -> None:
    given = lay(tmp_path, SPLIT)
    answer = at_terminal(tmp_path, "rewrite", ".", "--review", answers="yn")
    assert "changes in 2 files" in answer.out
    assert now(tmp_path) == given
    assert not (tmp_path / ".fsdp-migrate").exists()


def test_what_was_refused_can_be_taken_later(tmp_path: Path) -> None:
    given = lay(tmp_path, {"a.py": TWO})
    at_terminal(tmp_path, "rewrite", ".", "--review", answers="nm")
    assert CRITIC in now(tmp_path)["a.py"]
    assert ACTOR not in now(tmp_path)["a.py"]
    assert at_terminal(tmp_path, "rewrite", ".", "--review", answers="m").code == 0
    text = now(tmp_path)["a.py"]
    assert ACTOR in text
    assert CRITIC in text
    assert "FSDP(" not in text
    assert len(text.splitlines()) == len(migrate(given)[1]["a.py"].splitlines())


def test_the_rest_of_a_file(tmp_path: Path) -> None:
    lay(tmp_path, {"a.py": TWO})
    at_terminal(tmp_path, "rewrite", ".", "--review", answers="na")
    assert CRITIC in now(tmp_path)["a.py"]


def test_quitting_takes_what_was_answered_in_full(tmp_path: Path) -> None:
    lay(tmp_path, {"a.py": TWO, "b.py": LEFT})
    answer = at_terminal(tmp_path, "rewrite", ".", "--review", answers="yyq")
    assert answer.code == 1
    after = now(tmp_path)
    assert ACTOR in after["a.py"]
    assert CRITIC not in after["a.py"]
    assert after["b.py"] == LEFT, "its comment was not asked about"


@pytest.mark.parametrize("answers", ["^", "y^", "yy^", ".", "yy.", "q"])
def test_interrupted_nothing_is_written(tmp_path: Path, answers: str) -> None:
    given = lay(tmp_path, {"a.py": TWO})
    if answers == "q":
        assert at_terminal(tmp_path, "rewrite", ".", "--review", answers=answers).code == 1
    else:
        answer = at_terminal(tmp_path, "rewrite", ".", "--review", answers=answers)
        assert answer.code == 2
        assert "interrupted: nothing was written" in answer.out
    assert now(tmp_path) == given
    assert not (tmp_path / ".fsdp-migrate").exists()


def test_other_answers_are_helped(tmp_path: Path) -> None:
    lay(tmp_path, {"a.py": TWO})
    answer = at_terminal(tmp_path, "rewrite", ".", "--review", answers="?en m")
    assert answer.out.count("migrated whole or not at all") == 3
    assert CRITIC in now(tmp_path)["a.py"]


def test_changes_are_shown_in_colour(tmp_path: Path) -> None:
    lay(tmp_path, {"a.py": TWO})
    answer = at_terminal(tmp_path, "rewrite", ".", "--review", answers="q", colour=True)
    assert "\x1b[32m+    model = fully_shard(net)" in answer.out
    assert "\x1b[31m-    model = FSDP(net)" in answer.out


def test_guards_belong_to_their_migration(tmp_path: Path) -> None:
    source = LEFT.partition("\n")[0] + (
        "\n\n\ndef save(net):\n    model = FSDP(net)\n    return FSDP.state_dict(model)\n"
    )
    lay(tmp_path, {"a.py": source})
    at_terminal(tmp_path, "rewrite", ".", "--review", "--partial", answers="n")
    assert now(tmp_path)["a.py"] == source
    at_terminal(tmp_path, "rewrite", ".", "--review", "--partial", answers="y")
    assert now(tmp_path) == migrate({"a.py": source}, Options(partial=True))[1]


def test_nothing_to_ask_about(tmp_path: Path) -> None:
    lay(tmp_path, {"a.py": "import torch\n"})
    answer = at_terminal(tmp_path, "rewrite", ".", "--review", answers="")
    assert answer.code == 0
    assert "no FSDP1 found" in answer.out


def test_only_at_a_terminal(tmp_path: Path) -> None:
    given = lay(tmp_path, {"a.py": TWO})
    command = [sys.executable, "-m", "fsdp_migrate", "rewrite", ".", "--review"]
    answer = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        input="y\n" * 9,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 2
    assert answer.stderr == "error: --review asks, and standard input is no terminal\n"
    assert now(tmp_path) == given


def test_not_with_dry_run(tmp_path: Path) -> None:
    given = lay(tmp_path, {"a.py": TWO})
    answer = at_terminal(tmp_path, "rewrite", ".", "--review", "--dry-run", answers="")
    assert answer.code == 2
    assert "leave --dry-run out" in answer.out
    assert now(tmp_path) == given


REQUIRED = '[project]\ndependencies = ["torch>=2.0"]  # the framework\n'


def test_the_requirement_of_torch_is_a_change_of_its_own(tmp_path: Path) -> None:
    lay(tmp_path, SPLIT)
    (tmp_path / "pyproject.toml").write_text(REQUIRED)
    answer = at_terminal(tmp_path, "rewrite", ".", "--review", answers="mn")
    assert "2 of 2: what the project requires of torch (1 change in 1 file)" in answer.out
    assert '+dependencies = ["torch>=2.7"]  # the framework' in answer.out
    assert "fully_shard" in now(tmp_path)["build.py"]
    assert (tmp_path / "pyproject.toml").read_text() == REQUIRED


def test_the_requirement_of_torch_is_taken(tmp_path: Path) -> None:
    lay(tmp_path, SPLIT)
    (tmp_path / "pyproject.toml").write_text(REQUIRED)
    at_terminal(tmp_path, "rewrite", ".", "--review", answers="my")
    assert '"torch>=2.7"' in (tmp_path / "pyproject.toml").read_text()
    at_terminal(tmp_path, "undo", answers="")
    assert (tmp_path / "pyproject.toml").read_text() == REQUIRED


def test_where_no_migration_is_taken_the_requirement_is_not_asked_about(tmp_path: Path) -> None:
    lay(tmp_path, SPLIT)
    (tmp_path / "pyproject.toml").write_text(REQUIRED)
    answer = at_terminal(tmp_path, "rewrite", ".", "--review", answers="n")
    assert answer.code == 1
    assert (tmp_path / "pyproject.toml").read_text() == REQUIRED
