"""What answers at once must not load what is heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from fsdp_migrate import __main__
__main__.run(sys.argv[1:])
print(*(name for name in {heavy!r} if name in sys.modules), file=sys.stderr)
"""
HEAVY = (
    "libcst",
    "torch",
    "rich",
    "numpy",
    "pathspec",
    "packaging",
    "fsdp_migrate.migration.engine",
)


def loaded(*arguments: str, heavy: tuple[str, ...], cwd: Path) -> str:
    """Which of ``heavy`` are loaded once a command has run."""
    command = [sys.executable, "-c", PROGRAM.format(heavy=heavy), *arguments]
    answer = subprocess.run(command, capture_output=True, check=True, text=True, cwd=cwd)
    return answer.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        ("explain",),
        ("explain", "FSDP101"),
        ("explain", "sharding_strategy"),
        ("explain", "FSDP999"),
        ("rewrite", "--help"),
        ("check", "--help"),
        ("verify", "--help"),
        ("check", "--no-such-option"),
        ("no-such-command",),
    ],
    ids=" ".join,
)
def test_answers_come_without_anything_heavy(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert loaded(*arguments, heavy=HEAVY, cwd=tmp_path) == ""


@pytest.mark.parametrize(
    "arguments",
    [("--version",), ("explain",), ("explain", "FSDP101"), ("check", "."), ("check", "a.py", ".")],
    ids=" ".join,
)
def test_what_needs_no_parser_does_not_wait_for_one(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text("import torch\n")
    assert loaded(*arguments, heavy=("typer", "click"), cwd=tmp_path) == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("verify", "-h"),
        ("nothing",),
        ("check", ".", "--min-coverage", "50", "--format", "concise", "-o", "report.txt"),
        ("rewrite", ".", "--select", "FSDP1", "--jobs", "2", "-q"),
    ],
    ids=" ".join,
)
def test_nothing_waits_for_what_typer_reads_values_with(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    assert loaded(*arguments, heavy=("pydantic",), cwd=tmp_path) == ""


def test_a_check_without_options_is_the_one_with_their_defaults(tmp_path: Path) -> None:
    source = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nFSDP(model)\n"
    (tmp_path / "a.py").write_text(source)
    program = [sys.executable, "-m", "fsdp_migrate", "check", "."]
    short, long = (
        subprocess.run([*program, *options], capture_output=True, check=False, cwd=tmp_path)
        for options in ([], ["--format", "full"])
    )
    assert (short.returncode, short.stdout, short.stderr) == (1, long.stdout, long.stderr)


REST = (
    "fsdp_migrate.discovery.relevance",
    "fsdp_migrate.planning.rule",
    "fsdp_migrate.syntax.suppressions",
    "fsdp_migrate.workers",
)


@pytest.mark.parametrize("command", ["check", "rewrite"])
def test_nothing_of_fsdp_needs_nothing_that_looks_closer(command: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\n")
    assert loaded(command, ".", heavy=REST, cwd=tmp_path) == ""


@pytest.mark.parametrize("command", ["check", "rewrite"])
def test_nothing_to_do_needs_neither_libcst_nor_torch(command: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\n")
    assert loaded(command, ".", heavy=("libcst", "torch", "rich"), cwd=tmp_path) == ""


def test_check_never_loads_libcst_nor_torch(tmp_path: Path) -> None:
    source = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nFSDP(model)\n"
    (tmp_path / "a.py").write_text(source)
    assert loaded("check", ".", heavy=("libcst", "torch", "rich"), cwd=tmp_path) == ""


def test_rewrite_loads_libcst_and_never_torch(tmp_path: Path) -> None:
    source = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nFSDP(model)\n"
    (tmp_path / "a.py").write_text(source)
    assert loaded("rewrite", ".", heavy=("libcst", "torch", "rich"), cwd=tmp_path) == "libcst"


def test_user_code_is_never_imported_nor_run(tmp_path: Path) -> None:
    """Not by the file itself, not by a ``sitecustomize`` or a package that stands beside it."""
    for name in ("a.py", "libcst.py", "pathspec.py", "sitecustomize.py", "conftest.py"):
        (tmp_path / name).write_text(
            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
            "open('ran', 'w').close()\nmodel = FSDP(model)\n"
        )
    for command in ("check", "rewrite"):
        program = [sys.executable, "-m", "fsdp_migrate", command, "."]
        subprocess.run(program, capture_output=True, check=False, cwd=tmp_path)
    assert "fully_shard" in (tmp_path / "a.py").read_text()
    assert not (tmp_path / "ran").exists()
