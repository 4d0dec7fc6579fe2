"""Nothing of the working directory is imported, however the program is started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.verify.launch import baseline
from tests.helpers.commandline import ROOT

SCRIPT = Path(sys.executable).with_name("fsdp-migrate")
MODULE = (sys.executable, "-m", "fsdp_migrate")
WRAPS = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nm = FSDP(net)\n"
# Libraries of ours and of Python's that the program loads, early or late.
NAMES = (
    *("rich", "typer", "click", "torch", "platformdirs", "libcst", "packaging", "pathspec"),
    *("json", "tomllib", "difflib", "tempfile", "hashlib", "multiprocessing", "subprocess"),
    *("dataclasses", "ast", "tokenize", "traceback", "numpy", "yaml", "shellingham", "IPython"),
)
COMMANDS = (
    ("check", "."),
    ("check", "--format", "html", "."),
    ("rewrite", "--dry-run", "."),
    ("rewrite", "--allow-dirty", "."),
    ("explain", "FSDP101"),
    ("explain", "a.py:3"),
    ("undo",),
    ("--help",),
    ("nothing",),
)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A project whose files are called like what is imported, and leave a mark when they are."""
    root = tmp_path / "project"
    (root / "fsdp_migrate").mkdir(parents=True)
    plant(root, *(f"{name}.py" for name in NAMES))
    plant(root, "sitecustomize.py", "usercustomize.py")
    (root / "a.py").write_text(WRAPS)
    (root / "pyproject.toml").write_text('[tool.fsdp-migrate]\nrule-paths = ["rules"]\n')
    (root / "rules").mkdir()
    return root


def plant(root: Path, *names: str) -> None:
    mark = root.parent / "ran"
    for name in names:
        text = f"open({str(mark)!r}, 'a').write(__name__ + ' ')\nraise ImportError(__name__)\n"
        (root / name).write_text(text)


def run(root: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env |= {"HOME": str(root.parent), "FORCE_COLOR": "1", **environment}
    return subprocess.run(command, cwd=root, env=env, capture_output=True, check=False, text=True)


def ran(root: Path) -> str:
    mark = root.parent / "ran"
    return mark.read_text() if mark.exists() else ""


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_script_imports_nothing_of_the_working_directory(
    hostile: Path, command: tuple[str, ...]
) -> None:
    plant(hostile / "fsdp_migrate", "__init__.py", "__main__.py", "cli.py")
    answer = run(hostile, str(SCRIPT), *command)
    assert ran(hostile) == ""
    assert "ImportError" not in answer.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_module_imports_nothing_of_the_working_directory(
    hostile: Path, command: tuple[str, ...]
) -> None:
    """But for a ``fsdp_migrate`` that stands there, which is what ``-m`` then means."""
    shutil.rmtree(hostile / "fsdp_migrate")
    answer = run(hostile, *MODULE, *command)
    assert ran(hostile) == ""
    assert "ImportError" not in answer.stderr


@pytest.mark.parametrize("how", ["-P", "PYTHONSAFEPATH"])
def test_a_safe_path_keeps_even_a_package_of_our_name_out(hostile: Path, how: str) -> None:
    plant(hostile / "fsdp_migrate", "__init__.py", "__main__.py")
    python, *module = MODULE
    command = [python, *(["-P"] if how == "-P" else []), *module, "check", "."]
    answer = run(hostile, *command, **({} if how == "-P" else {how: "1"}))
    assert answer.returncode == 1, answer.stderr
    assert ran(hostile) == ""


@pytest.mark.parametrize("entry", ["", ".", "{}", "{}/lib", "lib", "link"])
@pytest.mark.parametrize("start", [(str(SCRIPT),), MODULE], ids=["script", "module"])
def test_an_entry_of_pythonpath_that_leads_there_is_left_out(
    hostile: Path, entry: str, start: tuple[str, ...]
) -> None:
    """What Python imports before the program begins (``sitecustomize``) it cannot keep out."""
    shutil.rmtree(hostile / "fsdp_migrate")
    for name in ("sitecustomize.py", "usercustomize.py"):
        (hostile / name).unlink()
    (hostile / "lib").mkdir()
    plant(hostile / "lib", "rich.py", "platformdirs.py", "libcst.py", "typer.py")
    link = hostile.parent / "link"
    link.symlink_to(hostile)
    named = str(link) if entry == "link" else entry.format(hostile)
    for command in (("check", "--format", "json", "."), ("rewrite", "--dry-run", ".")):
        answer = run(hostile, *start, *command, PYTHONPATH=f"{named}:/nowhere:")
        assert answer.returncode == 1, answer.stderr
    assert ran(hostile) == ""


def test_libraries_elsewhere_on_pythonpath_are_used(tmp_path: Path) -> None:
    """Some systems install what we need in such places."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    plant(elsewhere, "libcst.py")
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.py").write_text(WRAPS)
    run(project, str(SCRIPT), "rewrite", "--dry-run", ".", PYTHONPATH=str(elsewhere))
    assert ran(project) == "libcst "


def test_a_working_directory_that_holds_the_libraries(tmp_path: Path) -> None:
    """Nothing is left out that the program is installed in."""
    packages = next(Path(p) for p in sys.path if p.endswith("site-packages"))
    answer = run(packages, str(SCRIPT), "rewrite", "--help")
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize(
    "command",
    [("check", "."), ("--help",), ("check", "--help"), ("nothing",), (), ("check",), ("-V",)],
    ids=" ".join,
)
def test_module_and_script_behave_alike(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "a.py").write_text(WRAPS)
    script, module = (run(tmp_path, *start, *command) for start in ((str(SCRIPT),), MODULE))
    assert script.returncode == module.returncode
    assert script.stdout == module.stdout
    assert script.stderr == module.stderr
    assert "__main__" not in module.stdout + module.stderr


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    program = f"cd {gone} && rmdir {gone} && {SCRIPT} --version"
    answer = subprocess.run(program, shell=True, capture_output=True, check=False, text=True)
    assert answer.stdout.startswith("fsdp-migrate "), answer.stderr


def test_the_script_is_that_of_this_tree() -> None:
    program = "import fsdp_migrate; print(fsdp_migrate.__file__)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)  # noqa: PLW1510
    assert Path(answer.stdout.strip()).parents[1] == ROOT


def test_asking_for_torchs_version_imports_nothing_there(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(hostile, "csv.py", "email.py", "zipfile.py")
    monkeypatch.chdir(hostile)
    baseline.torch_version.cache_clear()
    assert baseline.torch_version(sys.executable)
    assert ran(hostile) == ""
