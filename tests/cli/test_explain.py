"""Pages of rules: by code, by name, by FSDP1 name, and for a place in the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning import pages
from tests.helpers.commandline import Command
from tests.helpers.migrating import REGISTRY

SOURCE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def build(model):
    return FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
"""


def test_the_table_lists_every_rule_once(run: Command) -> None:
    answer = run("explain")
    assert answer.code == 0
    codes = [line.split()[0] for line in answer.out.splitlines()]
    assert codes == sorted(set(codes)) == sorted(REGISTRY.rules)


@pytest.mark.parametrize("code", sorted(REGISTRY.rules))
def test_every_rule_has_a_whole_page(run: Command, code: str) -> None:
    answer = run("explain", code)
    assert answer.code == 0
    assert answer.out.startswith(f"{code} ")
    for heading in pages.HEADINGS:
        assert f"## {heading}\n" in answer.out
    assert not re.search(r"^(- )?\w$", answer.out, re.MULTILINE), "a section without text"
    if REGISTRY.rules[code].examples:
        assert "Before:" in answer.out
        assert "After:" in answer.out


def test_every_code_that_a_decision_can_carry_has_a_page() -> None:
    package = Path(pages.__file__).parent
    files = [*package.rglob("*.py"), *pages.bundled().rglob("*.py")]
    mentioned = {c for f in files for c in re.findall(r'"(FSDP\d{3})"', f.read_text())}
    assert mentioned <= {page.code for page in pages.pages()}


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("fsdp101", "FSDP101"),
        ("wrap", "FSDP101"),
        ("sharding_strategy", "FSDP201"),
        ("sharding_strategy=", "FSDP201"),
        ("FSDP.no_sync", "FSDP402"),
        ("summon_full_params", "FSDP306"),
        ("CPUOffload", "FSDP115"),
        ("held_back", "FSDP190"),
    ],
)
def test_a_page_by_any_of_its_names(run: Command, topic: str, code: str) -> None:
    assert run("explain", topic).out.startswith(f"{code} ")


@pytest.mark.parametrize("argument", sorted(fsdp1.CONSTRUCTOR_ARGUMENTS))
def test_every_argument_of_the_constructor_has_a_page(run: Command, argument: str) -> None:
    assert run("explain", argument).code == 0


def test_an_unknown_topic_gets_the_nearest_ones(run: Command) -> None:
    answer = run("explain", "shardin_strategy")
    assert answer.code == 2
    assert not answer.out
    assert "did you mean sharding_strategy" in answer.err
    lost = run("explain", "zzz")
    assert (lost.code, lost.err) == (
        2,
        "error: no rule is called 'zzz'; 'explain' alone lists the rules\n",
    )
    assert "FSDP499" in run("explain", "FSDP999").err


def test_a_place_is_explained(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SOURCE)
    answer = run("explain", "train.py:5")
    assert answer.code == 1
    assert " --> train.py:5:12\n" in answer.out
    assert "FSDP101 wrap\n" in answer.out
    assert "FSDP201 sharding_strategy\n" in answer.out
    assert run("explain", "train.py:5:12").out == answer.out


def test_a_place_without_fsdp1(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SOURCE)
    nothing = run("explain", "train.py:4")
    assert (nothing.code, nothing.err) == (0, "train.py:4: nothing of FSDP1 here\n")
    missing = run("explain", "nowhere.py:4")
    assert (missing.code, missing.err) == (2, "error: nowhere.py: does not exist\n")
