"""Hazards in code that uses FSDP2, as ``check`` reports them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import hazards
from tests.helpers.commandline import Command
from tests.helpers.migrating import files

FIXTURES = Path(__file__).parents[2] / "fixtures"
WRONG = """\
import torch
from torch.distributed.fsdp import fully_shard


def main(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # COMMENT
    fully_shard(model)
    return optimizer
"""
SILENT = WRONG.replace("COMMENT", "fsdp-migrate: ignore[FSDP903] a benchmark of nothing")


@pytest.fixture
def wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(WRONG)
    return tmp_path / "a.py"


def test_a_hazard_is_no_site(wrong: Path, run: Command) -> None:
    answer = run("check", "--format", "json", ".")
    assert answer.code == 1
    told = json.loads(answer.out)
    assert told["sites"] == []
    assert told["summary"]["sites"] == 0
    assert told["summary"]["coverage"] == 1
    assert told["summary"]["hazards"] == 1
    (hazard,) = told["hazards"]
    assert (hazard["path"], hazard["line"], hazard["code"]) == ("a.py", 6, "FSDP903")
    assert hazard["help"].startswith("build it below fully_shard")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("full", "no FSDP1 found in 1 file; 1 hazard in code that uses FSDP2"),
        ("concise", "a.py:6:17: FSDP903 [*] this optimizer is built before"),
        (
            "github",
            "::warning file=a.py,line=6,col=17,endLine=6,endColumn=60,title=FSDP903::this",
        ),
        ("markdown", "### Hazards"),
        ("sarif", '"level": "warning"'),
        ("html", "<h2>Hazards</h2>"),
    ],
)
def test_every_format_tells_of_it(wrong: Path, run: Command, name: str, said: str) -> None:
    answer = run("check", "--format", name, ".")
    assert said in answer.out
    assert "FSDP903" in answer.out


def test_codes_choose_hazards(wrong: Path, run: Command) -> None:
    assert run("check", "--select", "FSDP9", ".").code == 1
    assert run("check", "--select", "FSDP904", ".").code == 0
    assert run("check", "--ignore", "FSDP903", ".").code == 0
    assert "1  FSDP903  [hazard]" in run("check", "--statistics", ".").out


def test_a_comment_silences_it(wrong: Path, run: Command) -> None:
    wrong.write_text(SILENT)
    answer = run("check", ".")
    assert answer.code == 0
    assert "FSDP9" not in answer.out
    assert "FSDP990" not in run("check", "--select", "FSDP1", ".").out


def test_one_that_silences_nothing_is_told(wrong: Path, run: Command) -> None:
    wrong.write_text(SILENT.replace("    fully_shard(model)\n", ""))
    assert "FSDP990" in run("check", ".").out


def test_rewrite_looks_for_none(wrong: Path, run: Command) -> None:
    answer = run("rewrite", ".")
    assert answer.code == 0
    assert "FSDP9" not in answer.out
    assert wrong.read_text() == WRONG


def test_a_project_without_calls_of_fully_shard_asks_no_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fsdp_migrate.hazards.finding._of_rule", None)
    source = WRONG.replace("    fully_shard(model)\n", "")
    assert hazards.codes(source) == []


MIGRATED = sorted(FIXTURES.glob("**/after"))


@pytest.mark.parametrize("after", MIGRATED, ids=lambda path: path.parent.name)
def test_what_the_tool_writes_has_none(after: Path) -> None:
    assert hazards.hazards(files(after)) == []
