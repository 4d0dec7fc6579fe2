"""The rooms of the package, and the one direction in which they import each other."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import fsdp_migrate

PACKAGE = Path(fsdp_migrate.__file__).parent
# A room imports from itself and from those above it in this list; type-only imports count.
ROOMS = (
    *("errors", "options", "shown", "toml", "git", "workers", "signatures", "runtime", "syntax"),
    "fsdp1.api",
    *("analysis", "fsdp1", "discovery", "planning"),
    *("families.wrapping", "families.precision", "families.training_loop", "families.parameters"),
    *("families.names", "families.checkpoints", "families.modules", "families.subclasses"),
    *("configurations", "rewriting", "hazards", "migration", "report", "verify", "attempts", "cli"),
    "__main__",
)
AT_THE_ROOT = 8  # modules, at most


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below it."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if "_rules" not in parts:
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of the package that a file imports, at any place in it."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            short = name.removeprefix("fsdp_migrate.")
            if short != name and short in known:
                yield short


def room(module: str) -> int:
    """Where the room of a module stands in the list."""
    found = [n for n, r in enumerate(ROOMS) if module == r or module.startswith(f"{r}.")]
    assert found, f"{module} is in no room"
    return max(found, key=lambda n: len(ROOMS[n]))


def test_rooms_import_in_one_direction() -> None:
    known = modules()
    wrong = {
        f"{module} -> {other}"
        for module, path in known.items()
        for other in imported(path, known)
        if known[other].name != "__init__.py" and module and room(other) > room(module)
    }
    assert not wrong


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = modules()
    needs = {m: set(imported(path, known)) - {m} for m, path in known.items()}
    while free := {m for m, others in needs.items() if not others & needs.keys()}:
        needs = {m: others for m, others in needs.items() if m not in free}
    assert not needs, f"a circle is among {sorted(needs)}"


def test_few_modules_stand_at_the_root() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= AT_THE_ROOT


def test_no_file_has_both_sides_of_a_merge() -> None:
    """A page of a rule was published with them."""
    root = PACKAGE.parent
    listed = subprocess.run(
        [
            "git",
            "grep",
            "-lE",
            "^(<<<<<<< |>>>>>>> )",
            "--",
            "fsdp_migrate",
            "rules",
            "docs",
            "*.md",
        ],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.returncode < 2  # 1: there are none
    assert listed.stdout == ""
