"""What a test asks is left alone before whole models are."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.migration import engine
from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.commandline import answering
from tests.helpers.migrating import files, migrate

ONE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision


def policy(fields={}):
    return MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.float16)


def shard(model):
    return FSDP(model, mixed_precision=policy())
"""
AT_RUN_TIME = ONE.replace("(param_dtype=torch.bfloat16, ", "(**fields, ")
TWO = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard_plain(model):
    return FSDP(model)
"""
TEST = """\
import torch
from src.pack.one import policy as make
from torch.distributed.fsdp import MixedPrecision


def test_policy():
    policy = make()
{lines}
"""
ASKED = {
    "unittest's": "self = case()\nself.assertIsInstance(policy, MixedPrecision)",
    "pytest's": "assert isinstance(policy, MixedPrecision)",
    "one of several": "assert isinstance(policy, (MixedPrecision, dict))",
    "its class": "assert type(policy) is MixedPrecision",
}
FIELD = "assert policy.buffer_dtype == torch.float16"
SETUP = """\
from setuptools import find_packages, setup

setup(name="pack", packages=find_packages(where="src"), package_dir={"": "src"})
"""
FLAT = 'from setuptools import setup\n\nsetup(name="pack", packages=["pack"])\n'


def tree(one: str, lines: str, test: str = "tests/test_one.py") -> dict[str, str]:
    indented = "\n".join(f"    {line}" for line in lines.splitlines())
    return {
        "src/__init__.py": "",
        "src/pack/__init__.py": "",
        "src/pack/one.py": one,
        "src/pack/two.py": TWO,
        "src/pack/main.py": "from pack.one import shard\nfrom pack.two import shard_plain\n",
        test: TEST.format(lines=indented),
    }


@pytest.mark.parametrize("asked", [*ASKED.values(), ""], ids=[*ASKED, "nothing else"])
def test_a_field_that_a_test_asks_for_takes_no_other_form(asked: str) -> None:
    result, after = migrate(tree(ONE, f"{asked}\n{FIELD}"))
    assert not result.problems
    assert "MixedPrecisionPolicy(param_dtype=torch.bfloat16)" in after["src/pack/one.py"]
    assert "fully_shard(model)" in after["src/pack/two.py"]
    assert not any("fsdp2_support" in name for name in after)
    assert "FSDP203): An FSDP2 policy has no buffer_dtype" in after["tests/test_one.py"]
    assert FIELD in after["tests/test_one.py"]
    assert ("MixedPrecision is used as a value" in after["tests/test_one.py"]) == asked.startswith(
        ("self", "assert type")
    )
    again, same = migrate(after)
    assert same == after
    assert not again.problems


def test_a_field_that_is_the_same_is_asked_for_in_a_test_too() -> None:
    one = ONE.replace("torch.bfloat16", "torch.float16")
    _, after = migrate(tree(one, FIELD))
    assert "policy.param_dtype == torch.float16" in after["tests/test_one.py"]


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_a_question_without_a_place_for_its_class_holds_no_model(asked: str) -> None:
    result, after = migrate(tree(AT_RUN_TIME, asked))
    assert not result.problems
    left = [d for d in result.decisions if d.outcome is Outcome.LEFT]
    assert {d.site.module.display for d in left} == {"tests/test_one.py"}
    assert engine.UNPROVED in left[0].message
    assert "FSDP(" not in after["src/pack/one.py"] + after["src/pack/two.py"]
    assert "import MixedPrecision\n" in after["tests/test_one.py"]


MAKES = "assert policy == MixedPrecision(param_dtype=torch.bfloat16)"


@pytest.mark.parametrize(
    ("lines", "test"),
    [(ASKED["pytest's"], "examples/show.py"), (ASKED["its class"], "examples/show.py")],
)
def test_a_program_that_asks_holds_the_models_of_the_class_alone(lines: str, test: str) -> None:
    result, after = migrate(tree(AT_RUN_TIME, lines, test))
    assert not result.problems
    assert after["src/pack/one.py"].count("FSDP(model") == 1
    assert "fully_shard(model)" in after["src/pack/two.py"]


def test_a_program_that_asks_for_a_field_takes_the_form_that_has_it() -> None:
    _, after = migrate({"one.py": ONE, "show.py": f"from one import policy\n\nx = 1\n{SHOW}"})
    assert "policy().buffer_dtype" in after["show.py"]
    assert "MixedPrecisionPolicy" not in after["one.py"]
    assert any("fsdp2_support" in name for name in after)


SHOW = "print(policy().buffer_dtype)\n"


def test_a_test_that_makes_a_policy_holds_the_models_of_the_class() -> None:
    _, after = migrate(tree(AT_RUN_TIME, MAKES))
    assert "FSDP(model, mixed_precision=policy())" in after["src/pack/one.py"]
    assert "fully_shard(model)" in after["src/pack/two.py"]


@pytest.mark.parametrize(
    ("setup", "is_told"),
    [(SETUP, False), (FLAT.replace('"])', '"], package_dir={"": "src"})'), False), ("", True)],
    ids=["found", "listed", "none"],
)
def test_a_package_that_is_listed_need_not_be(
    setup: str,
    is_told: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    given = tree(AT_RUN_TIME, ASKED["pytest's"], "examples/show.py")
    if setup:
        given["setup.py"] = setup
    for name, text in given.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    answer = answering(capfdbinary)("rewrite", ".", "--allow-dirty")
    assert engine.UNPROVED in answer.out
    assert ("list the package in pyproject.toml" in answer.out) is is_told
    assert "fsdp2_support" not in files(tmp_path)["src/pack/one.py"]
