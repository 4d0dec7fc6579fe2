"""Files that import a package which another program has beside it are not read for its sake."""

from __future__ import annotations

from pathlib import Path

from fsdp_migrate.discovery import search

SAVES = "def save(model):\n    return model.state_dict()\n"
WRAPS = f"from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n{SAVES}"
USES = f"from core.saving import save\n\n{SAVES}"
TREE = {
    "one/core/setup.py": "",
    "one/core/src/core/__init__.py": "",
    "one/core/src/core/saving.py": WRAPS,
    "one/main.py": USES,
    "one/tools/convert.py": USES,
    "two/main.py": USES,
}


def read(tree: Path, files: dict[str, str]) -> set[str]:
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    found = search.find([tree])
    return {path.relative_to(tree).as_posix() for path in (*found.candidates, *found.others)}


def test_only_the_program_that_has_it_is_read(tmp_path: Path) -> None:
    known = {"one/core/src/core/saving.py", "one/main.py", "one/tools/convert.py"}
    assert read(tmp_path, TREE) == known


def test_all_are_read_where_it_may_be_installed(tmp_path: Path) -> None:
    found = read(tmp_path, TREE | {"README.md": "pip install -e one/core\n"})
    assert {"one/main.py", "two/main.py"} <= found


def test_all_are_read_where_no_script_lies_beside_it(tmp_path: Path) -> None:
    files = {name: text for name, text in TREE.items() if name != "one/main.py"}
    assert {"one/tools/convert.py", "two/main.py"} <= read(tmp_path, files)


def test_a_directory_above_that_has_the_name_is_another_way(tmp_path: Path) -> None:
    assert "two/main.py" in read(tmp_path, TREE | {"two/core/other.py": "x = 1\n"})
