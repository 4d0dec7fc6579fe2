"""A plan that cannot work is refused with a sentence that says why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.verify.plan import Plan, PlanError


@pytest.fixture
def trees(tmp_path: Path) -> dict[str, Path]:
    for side in ("before", "after"):
        (tmp_path / side / "pkg").mkdir(parents=True)
        (tmp_path / side / "train.py").touch()
        (tmp_path / side / "pkg" / "__main__.py").touch()
    return {"before": tmp_path / "before", "after": tmp_path / "after"}


def test_script_and_module_forms(trees: dict[str, Path]) -> None:
    assert Plan(**trees, script="train.py").title == "train.py"
    assert Plan(**trees, script="module:pkg").module == "pkg"
    assert Plan(**trees, script="module:train").title == "-m train"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"script": "missing.py"}, "missing.py does not exist in the 'before' tree"),
        ({"script": "pkg"}, "does not exist in the 'before' tree"),
        ({"script": "/etc/passwd"}, "must be a path below the trees"),
        ({"script": "../train.py"}, "must be a path below the trees"),
        ({"script": "module:os"}, "the module os is not in the 'before' tree"),
        ({"script": "module:pkg-x"}, "not a module name"),
        ({"workdir": "nowhere"}, "working directory nowhere is not in"),
        ({"nproc": 0}, "nproc must be at least 1"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
        ({"timeout": 0}, "timeout must be a positive number"),
        ({"timeout": float("nan")}, "timeout must be a positive number"),
        ({"seed": -1}, "seed must be"),
        ({"share": ("data",)}, "shared path data does not exist"),
    ],
)
def test_impossible_plans(trees: dict[str, Path], changes: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        Plan(**{**trees, "script": "train.py", **changes})


def test_a_script_that_only_the_original_has(trees: dict[str, Path]) -> None:
    (trees["after"] / "train.py").unlink()
    with pytest.raises(PlanError, match=r"train\.py does not exist in the 'after' tree"):
        Plan(**trees, script="train.py")


def test_a_tree_that_is_a_file(trees: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="is not a directory"):
        Plan(before=trees["before"] / "train.py", after=trees["after"], script="train.py")
    with pytest.raises(PlanError, match="does not exist"):
        Plan(before=trees["before"], after=tmp_path / "nothing", script="train.py")


def test_importing_verify_brings_neither_torch_nor_libcst() -> None:
    code = (
        "import sys, fsdp_migrate.verify, fsdp_migrate.verify.plan, fsdp_migrate.verify.run\n"
        "import fsdp_migrate.verify.report.text, fsdp_migrate.verify.report.json\n"
        "print([name for name in ('torch', 'libcst', 'numpy', 'rich') if name in sys.modules])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "[]"
