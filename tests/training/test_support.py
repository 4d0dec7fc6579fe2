"""Every support function under two ranks, and on one; see :mod:`.checks`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from fsdp_migrate import runtime
from tests.training import checks
from tests.training.programs import Launcher

pytestmark = pytest.mark.train

ON_ONE_RANK = (
    "a_whole_state_is_a_copy_under_plain_names",
    "changes_to_whole_parameters_stay",
    "gradients_add_up_without_being_reduced",
)


@pytest.mark.parametrize("name", checks.CHECKS)
def test_on_two_ranks(name: str, launcher: Launcher) -> None:
    launcher.function("tests.training.checks", "run", name)


@pytest.mark.parametrize("name", ON_ONE_RANK)
def test_on_one_rank(name: str, launcher: Launcher) -> None:
    launcher.function("tests.training.checks", "run", name, ranks=1)


def test_every_function_is_checked() -> None:
    library = Path(runtime.__file__).with_name("fsdp2_support.py")
    tree = ast.parse(library.read_text())
    public = {n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name[0] != "_"}
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("*.py"))
    assert {name for name in public if not re.search(rf"\bsupport\.{name}\b", text)} == set()
