"""A package that lies beside the scripts of one program is no other program's by where it lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.analysis.module import Library
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.syntax.source import Source

USES = "from core.saving import save\n"
TREE = {
    "one/core/setup.py": "",
    "one/core/src/core/__init__.py": "",
    "one/core/src/core/saving.py": "def save(model): ...\n",
    "one/core/tests/test_core.py": USES,
    "one/main.py": USES,
    "one/tools/convert.py": USES,
    "two/main.py": USES,
}


def users(tree: Path, files: dict[str, str]) -> set[str]:
    """The files that import a package of the tree, for all that it holds."""
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    parsed = [
        Source.parse(text.encode(), path=tree / name, display=name)
        for name, text in files.items()
        if name.endswith(".py")
    ]
    project = Project(parsed, Library(top=tree))
    return {m.display for m in project.modules if project.find("core.saving", m) is not None}


INSIDE = {name for name in TREE if name.startswith("one/") and not name.endswith("setup.py")}
INSIDE |= {"one/core/setup.py"}


def test_another_programs_copy_is_not_imported(tmp_path: Path) -> None:
    assert users(tmp_path, TREE) == INSIDE


def test_a_package_that_no_script_lies_beside_is_anybodys(tmp_path: Path) -> None:
    files = {name: text for name, text in TREE.items() if name != "one/main.py"}
    assert users(tmp_path, files) == {*files}


def test_a_script_beside_it_that_does_not_import_it_tells_nothing(tmp_path: Path) -> None:
    assert users(tmp_path, TREE | {"one/main.py": "import os\n"}) == {*TREE}


def test_a_directory_that_is_no_project_tells_nothing(tmp_path: Path) -> None:
    files = {name: text for name, text in TREE.items() if name != "one/core/setup.py"}
    assert users(tmp_path, files) == {*files}


def test_the_top_of_what_is_looked_at_is_everybodys(tmp_path: Path) -> None:
    files = {name.removeprefix("one/"): text for name, text in TREE.items()}
    assert users(tmp_path, files) == {*files}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("README.md", "pip install -e one/core\n"),
        ("two/install.sh", "pip install ../one/core\n"),
        ("Makefile", "install:\n\tcd one && pip install -e core\n"),
        ("pyproject.toml", '[tool.uv.workspace]\nmembers = ["one/*", "two"]\n'),
        ("two/requirements.txt", "-e file:../one/core\n"),
        (".github/workflows/ci.yml", "run: PYTHONPATH=one/core/src pytest\n"),
        ("two/paths.py", 'import sys\nsys.path.insert(0, os.path.join(ROOT, "one", "core"))\n'),
        ("two/paths2.py", "ROOT = HERE.parent / 'one' / 'core'\n"),
    ],
)
def test_a_path_that_leads_there_may_be_on_the_path(tmp_path: Path, name: str, text: str) -> None:
    assert "two/main.py" in users(tmp_path, TREE | {name: text})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("one/README.md", "pip install -e one/core\n"),  # of the program that has it
        ("README.md", "one of two programs; one-core/ is none. core/ is installed by pip\n"),
        ("two/install.sh", "pip install core\n"),
    ],
)
def test_what_leads_nowhere_tells_nothing(tmp_path: Path, name: str, text: str) -> None:
    assert "two/main.py" not in users(tmp_path, TREE | {name: text})


@pytest.mark.parametrize("imported", ["import shared.loop\n", "from shared import loop\n"])
def test_what_the_scripts_lead_to_runs_with_them(tmp_path: Path, imported: str) -> None:
    more = {"one/run.py": imported, "shared/loop.py": USES + "import deeper\n", "deeper.py": USES}
    found = users(tmp_path, TREE | more)
    assert {"shared/loop.py", "deeper.py"} <= found
    assert "two/main.py" not in found
