"""Lightning itself, in a folder of its own, and programs that it trains on two ranks.

CUDA is imitated on CPUs (``imitated.py``).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.configurations.imitated import WORLD
from tests.corpus import packages

REQUIREMENTS = Path(__file__).with_name("lightning.txt")
PROGRAMS = Path(__file__).with_name("lightning")
ROOT = Path(__file__).parents[2]


def installed(scratch: Path, requirements: Path = REQUIREMENTS) -> Path:
    """The folder of Lightning and what it needs beside torch; from the package index, by hash."""
    wheels = packages.download(scratch, requirements)
    for package in packages.pinned(requirements):
        found = packages.wheel(package, wheels)
        assert found is not None, f"{package.name} was not downloaded"
        with zipfile.ZipFile(found) as archive:
            archive.extractall(scratch / "site")
    return scratch / "site"


@dataclass(frozen=True)
class Ran:
    """What a program printed: losses of rank 0, those of its validations, and its error."""

    losses: tuple[float, ...]
    validations: tuple[float, ...]
    error: str
    said: str

    @property
    def text(self) -> str:
        return self.error or "trains"


def run(programs: Mapping[Path, str], lightning: Path, name: str = "lightning") -> list[Ran]:
    """Train the program of each folder, one after the other, on two ranks."""
    for folder, source in programs.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "train.py").write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "tests.configurations.imitated", name]
    command += map(str, programs)
    environment = {**os.environ, "PYTHONPATH": searched(lightning)}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    return [_ran(folder) for folder in programs]


def _ran(folder: Path) -> Ran:
    said = (folder / "rank-0.txt").read_text(encoding="utf-8")
    failed = any((folder / f"status-{n}.txt").read_text() != "0" for n in range(WORLD))
    error = ""
    if failed:
        found = re.findall(r"^((?:\w+\.)*\w*(?:Error|Exception): .*)", said, re.M)
        error = re.sub(r"^(?:\w+\.)+", "", found[-1]) if found else "it failed"
    return Ran(_numbers("loss", said), _numbers("validation", said), error, said)


def searched(lightning: Path) -> str:
    return os.pathsep.join([str(ROOT), str(lightning)])


def _numbers(name: str, said: str) -> tuple[float, ...]:
    return tuple(map(float, re.findall(rf"^{name} (\S+)$", said, re.M)))


def same(before: Ran, after: Ran, tolerance: float = 1e-5) -> bool:
    """Whether all losses are the same, of training and of validation."""
    x, y = ((*each.losses, *each.validations) for each in (before, after))
    if not before.losses or len(before.losses) != len(after.losses) or len(x) != len(y):
        return False
    return all(abs(p - q) <= tolerance * abs(p) for p, q in zip(x, y, strict=True))


def program(name: str, replaced: Mapping[str, str]) -> str:
    """A program with parts of its text replaced, each of which stands there once."""
    source = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
    for old, new in replaced.items():
        assert source.count(old) == 1, f"{old!r} must stand exactly once"
        source = source.replace(old, new)
    return source
