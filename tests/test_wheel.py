"""What is installed works without the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.helpers.commandline import DEMO, ROOT


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with nothing but the wheel and, from the environment of
    the tests, what it depends on."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    packages = Path(
        subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # A path in such a file is searched last, and its own .pth files (an editable install) are not
    # read: the package can only come from the wheel.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run(python: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(cwd)}
    command = [str(python), "-m", "fsdp_migrate", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def test_rules_and_their_pages_are_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    answer = run(installed, "explain", "FSDP101", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("FSDP101")


def test_pages_of_reports_are_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\n")
    answer = run(installed, "check", ".", "--format", "html", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count(":root {") == 4
    installed_here = installed.parents[1]
    styles = [p.parent.relative_to(installed_here) for p in installed_here.rglob("report.css")]
    assert sorted(p.parent.name for p in styles) == ["fsdp_migrate", "verify"]


@pytest.mark.train
@pytest.mark.parametrize("launcher", ["fork", "torchrun"])
def test_verify_works_as_installed(installed: Path, tmp_path: Path, launcher: str) -> None:
    answer = run(
        installed,
        *("verify", "train.py", "--before", str(DEMO / "before"), "--after", str(DEMO / "after")),
        *("--launcher", launcher, "--steps", "2", "--no-twin"),
        cwd=tmp_path,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    went = "steps 1 to 2 of a program that went on, 2 ranks"
    assert f"VERDICT  PASS  same training: {went}" in answer.stdout
