"""Published packages with real FSDP1 code, and what the tool makes of them.

Wheels are downloaded by hash, unpacked into scratch directories and never installed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.cli import session
from fsdp_migrate.cli.session import Run
from fsdp_migrate.planning.outcome import Outcome

REQUIREMENTS = Path(__file__).with_name("requirements.txt")


@dataclass(frozen=True)
class Package:
    name: str
    version: str


def pinned(requirements: Path) -> list[Package]:
    found = re.findall(r"^([\w-]+)==(\S+)", requirements.read_text(), re.MULTILINE)
    return [Package(*each) for each in found]


PINNED = pinned(REQUIREMENTS)


@dataclass(frozen=True)
class Row:
    """A line of the corpus table."""

    name: str
    version: str
    files: int
    sites: int
    rewritten: int
    review: int
    left: int
    seconds: float
    reasons: tuple[tuple[str, int], ...] = ()

    @property
    def share(self) -> int:
        """Percent of the sites that were rewritten, with or without review."""
        return 100 * (self.rewritten + self.review) // self.sites if self.sites else 100


def directory(scratch: Path) -> Path:
    """Where wheels are: in the directory that FSDP_MIGRATE_CORPUS names, or in ``scratch``."""
    named = os.environ.get("FSDP_MIGRATE_CORPUS")
    return Path(named) if named else scratch / "wheels"


def download(scratch: Path, requirements: Path = REQUIREMENTS) -> Path:
    """All wheels."""
    wheels = directory(scratch)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    options = ["--require-hashes", "--only-binary", ":all:", "--dest", str(wheels)]
    subprocess.run([*command, *options, "--requirement", str(requirements)], check=True)
    return wheels


def wheel(package: Package, wheels: Path) -> Path | None:
    """The package's wheel, if it was downloaded."""
    stem = f"{package.name.replace('-', '_')}-{package.version}-"
    return next((w for w in wheels.glob("*.whl") if w.name.lower().startswith(stem)), None)


def unpack(package: Package, wheels: Path, scratch: Path) -> Path:
    found = wheel(package, wheels)
    assert found is not None, f"{package.name} was not downloaded"
    target = scratch / package.name
    with zipfile.ZipFile(found) as archive:
        archive.extractall(target)
    return target


def texts(root: Path) -> dict[str, str]:
    """Every Python file below a directory that is UTF-8, by its path there."""
    found: dict[str, str] = {}
    for path in sorted(root.rglob("*.py")):
        with suppress(UnicodeDecodeError):
            found[path.relative_to(root).as_posix()] = path.read_text(encoding="utf-8")
    return found


def measure(package: Package, root: Path) -> Row:
    """Run the tool without writing."""
    return row(package, root, session.run([root]))


def row(package: Package, root: Path, run: Run) -> Row:
    count = run.result.count
    reasons = Counter(
        f"{d.code}: {_general(d.message)}"
        for d in run.result.decisions
        if d.outcome is Outcome.LEFT
    )
    return Row(
        package.name,
        package.version,
        sum(1 for _ in root.rglob("*.py")),
        len(run.result.decisions),
        count(Outcome.REWRITTEN),
        count(Outcome.REVIEW),
        count(Outcome.LEFT),
        run.seconds,
        tuple(reasons.most_common()),
    )


def _general(message: str) -> str:
    """A reason without the place it names, so that equal reasons are counted together."""
    return re.sub(r"(held back with) \S+:\d+", r"\1 another", message)
