"""How a project's formatters are set is read off its files, and new code fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.cli import config
from fsdp_migrate.migration.engine import Options
from tests.helpers.migrating import migrate


def load(root: Path, files: dict[str, str]) -> config.Config:
    for name, text in {"pyproject.toml": "", **files}.items():
        (root / name).write_text(text)
    return config.load(root)


@pytest.mark.parametrize(
    ("files", "length"),
    [
        ({"ruff.toml": "line-length = 110\n"}, 110),
        ({".ruff.toml": "[lint]\nselect = ['E']\n"}, 88),
        ({"ruff.toml": "not toml", ".editorconfig": "[*]\nmax_line_length = 70\n"}, 70),
        ({".editorconfig": "root = true\n[*]\nmax_line_length = 79\n"}, 79),
        ({".editorconfig": "[*.py]\nmax_line_length = 79 ; comment\n"}, 79),
        ({".editorconfig": "[*.{py,pyi}]\nmax_line_length=79\n"}, 79),
        ({".editorconfig": "[*]\nmax_line_length = 79\n[*.py]\nmax_line_length = 90\n"}, 90),
        ({".editorconfig": "[*.md]\nmax_line_length = 79\n"}, 100),
        ({".editorconfig": "[docs/*.py]\nmax_line_length = 79\n"}, 100),
        ({".editorconfig": "[*.py]\nmax_line_length = off\n"}, 100),
        ({".flake8": "[flake8]\nmax-line-length = 79\n"}, 79),
        ({"setup.cfg": "[flake8]\nmax-line-length = 79\n"}, 79),
        ({"setup.cfg": "[isort]\nline_length = 95\n"}, 95),
        ({"setup.cfg": "no section\n"}, 100),
        ({"tox.ini": "[flake8]\nmax-line-length = 120\n"}, 120),
        ({".flake8": "[flake8]\nmax-line-length = 5\n"}, 100),
        ({".flake8": "[flake8]\nmax-line-length = 9999999999\n"}, 100),
        ({"pyproject.toml": "[tool.black]\nline-length = 95\n", "setup.cfg": "[flake8]\n"}, 95),
    ],
)
def test_the_length_of_lines(tmp_path: Path, files: dict[str, str], length: int) -> None:
    assert load(tmp_path, files).line_length == length


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({}, ""),
        ({"pyproject.toml": "[tool.black]\n"}, "black"),
        ({"pyproject.toml": "[tool.ruff]\n"}, "ruff"),
        ({"pyproject.toml": "[tool.ruff]\n[tool.black]\n"}, "black"),
        ({"pyproject.toml": "[tool.ruff.format]\n[tool.black]\n"}, "ruff"),
        ({"ruff.toml": ""}, "ruff"),
        ({"ruff.toml": "", ".pre-commit-config.yaml": "    - id: black\n"}, "black"),
        ({".pre-commit-config.yaml": "  hooks:\n  -   id: ruff-format\n"}, "ruff"),
        ({".pre-commit-config.yaml": "    - id: blacken-docs\n    - id: ruff\n"}, ""),
    ],
)
def test_the_formatter(tmp_path: Path, files: dict[str, str], name: str) -> None:
    assert load(tmp_path, files).formatter == name


@pytest.mark.parametrize(
    ("files", "single", "first_party"),
    [
        ({}, False, set()),
        ({"pyproject.toml": "[tool.isort]\nforce_single_line = true\n"}, True, set()),
        ({"pyproject.toml": "[tool.isort]\nprofile = 'google'\n"}, True, set()),
        ({"pyproject.toml": "[tool.isort]\nprofile = 'black'\n"}, False, set()),
        ({"pyproject.toml": "[tool.ruff.lint.isort]\nforce-single-line = true\n"}, True, set()),
        ({"ruff.toml": "[lint.isort]\nknown-first-party = ['nets']\n"}, False, {"nets"}),
        ({".isort.cfg": "[settings]\nknown_first_party = a, b\n"}, False, {"a", "b"}),
        ({"setup.cfg": "[isort]\nforce_single_line = True\n"}, True, set()),
        ({"pyproject.toml": "[tool.isort]\nknown_first_party = [1, 'a b']\n"}, False, set()),
    ],
)
def test_the_order_of_imports(
    tmp_path: Path, files: dict[str, str], single: bool, first_party: set[str]
) -> None:
    found = load(tmp_path, files).imports
    assert (found.single_line, found.first_party) == (single, first_party)


SINGLE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision
from torch.utils.data import DataLoader


def build(model, state):
    model = FSDP(model, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
    model.load_state_dict(state)
    return model, DataLoader
"""


def test_each_name_has_a_statement_where_the_project_wants_it() -> None:
    result, after = migrate({"a.py": SINGLE}, Options(single_line_imports=True))
    assert not result.problems
    head = after["a.py"].partition("\n\n")[0].splitlines()
    assert [line for line in head if "," in line or "(" in line] == []
    assert "from torch.distributed.fsdp import MixedPrecisionPolicy" in head
    assert head.index("from torch.distributed.fsdp import MixedPrecisionPolicy") < head.index(
        "from torch.distributed.fsdp import fully_shard"
    )
    again, _ = migrate(after, Options(single_line_imports=True))
    assert not again.changes


def test_elsewhere_names_of_one_module_share_one() -> None:
    _, after = migrate({"a.py": SINGLE})
    assert "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard" in after["a.py"]
