"""``select`` and ``ignore`` say what is reported, ``leave`` what stays as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.helpers.commandline import ROOT, Command

# FSDP201 has something to judge, FSDP101 and FSDP112 have not.
SOURCE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy


def build(net, flag):
    return FSDP(
        net,
        sharding_strategy=ShardingStrategy.NO_SHARD,
        device_id=torch.cuda.current_device(),
    )
"""
HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
OTHER = f"{HEAD}\nm = FSDP(net)\n"


@pytest.fixture
def project(here: Path) -> Path:
    (here / "a.py").write_text(SOURCE)
    return here


def outcomes(run: Command, *arguments: str) -> dict[str, tuple[str, bool]]:
    sites = json.loads(run("check", "--format", "json", *arguments, ".").out)["sites"]
    return {site["code"]: (site["outcome"], site["ignored"]) for site in sites}


def test_there_is_something_to_judge(project: Path, run: Command) -> None:
    assert outcomes(run)["FSDP201"][0] == "review"
    run("rewrite", ".")
    assert "TODO(fsdp-migrate FSDP201)" in (project / "a.py").read_text()


@pytest.mark.parametrize("word", ["--ignore", "pyproject", "comment"])
def test_what_is_ignored_is_migrated_without_a_word(project: Path, run: Command, word: str) -> None:
    given = ("--ignore", "fsdp201") if word == "--ignore" else ()
    if word == "pyproject":
        (project / "pyproject.toml").write_text('[tool.fsdp-migrate]\nignore = ["FSDP201"]\n')
    if word == "comment":
        line = "NO_SHARD,"
        ignored = SOURCE.replace(line, f"{line}  # fsdp-migrate: ignore[FSDP201] we know")
        (project / "a.py").write_text(ignored)
    assert outcomes(run, *given)["FSDP201"] == ("review", True)
    assert "FSDP201 [" not in run("check", *given, ".").out
    answer = run("rewrite", *given, ".")
    assert answer.code == 0
    assert "0 to review" in answer.out
    new = (project / "a.py").read_text()
    assert "TODO" not in new
    assert "FSDP(" not in new


def test_where_all_is_ignored_nothing_is_done(here: Path, run: Command) -> None:
    (here / "a.py").write_text(OTHER)
    assert run("check", "--ignore", "FSDP1", ".").code == 0
    assert run("rewrite", "--ignore", "FSDP1", ".").code == 0
    assert (here / "a.py").read_text() == OTHER


def test_what_is_selected_brings_its_model(project: Path, run: Command) -> None:
    (project / "b.py").write_text("import accelerate\n")
    (project / "fsdp.yaml").write_text("fsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n")
    answer = run("check", "--select", "FSDP112", ".")
    assert "FSDP112 [*]" in answer.out
    assert "FSDP101" not in answer.out
    run("rewrite", "--select", "FSDP112", ".")
    assert "FSDP(" not in (project / "a.py").read_text()
    assert "FULL_SHARD" in (project / "fsdp.yaml").read_text(), "it is no part of that"


def test_what_is_not_there_is_no_failure(project: Path, run: Command) -> None:
    assert run("check", "--select", "FSDP3", ".").code == 0
    assert run("check", "--select", "FSDP201", ".").code == 1


@pytest.mark.parametrize("word", ["--leave", "pyproject", "comment"])
def test_what_is_left_takes_its_model_with_it(project: Path, run: Command, word: str) -> None:
    given = ("--leave", "FSDP101") if word == "--leave" else ()
    if word == "pyproject":
        (project / "pyproject.toml").write_text('[tool.fsdp-migrate]\nleave = ["fsdp101"]\n')
    if word == "comment":
        kept = SOURCE.replace("FSDP(\n", "FSDP(  # fsdp-migrate: leave[FSDP101] for now\n")
        (project / "a.py").write_text(kept)
    before = (project / "a.py").read_text()
    answer = run("check", *given, ".")
    assert answer.code == 0, answer.out
    assert "0 left for you, 3 ignored" in answer.out
    assert run("rewrite", *given, ".").code == 0
    assert (project / "a.py").read_text() == before


def test_what_is_left_of_an_argument_holds_its_model_back(project: Path, run: Command) -> None:
    answer = run("check", "--leave", "FSDP201", ".")
    assert answer.code == 1
    assert "which stays on purpose" in answer.out
    assert "take back what leave, in the settings, says" in answer.out


def test_a_guard_is_always_reported(here: Path, run: Command) -> None:
    (here / "a.py").write_text(f"{OTHER}state = m.state_dict(keep_vars=True)\n")
    assert "FSDP302" in run("check", "--ignore", "FSDP302", ".").out


def test_the_readmes_samples_do_what_they_say(here: Path, run: Command) -> None:
    text = (ROOT / "README.md").read_text()
    kept, left = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[::-1]
    (here / "a.py").write_text(f"{HEAD}\n{kept}")
    assert run("check", ".").code == 0
    assert run("rewrite", ".").code == 0
    assert (here / "a.py").read_text() == f"{HEAD}\n{kept}"
    body = [line for line in left.splitlines() if "TODO" not in line and "raise" not in line]
    (here / "a.py").write_text("\n".join([HEAD, "def f(net):", "    model = FSDP(net)", *body, ""]))
    run("rewrite", ".")
    written = [line.strip() for line in (here / "a.py").read_text().splitlines()]
    for line in map(str.strip, left.splitlines()):
        start = line.removesuffix(" ...")
        assert any(each.startswith(start[:60]) for each in written), line
