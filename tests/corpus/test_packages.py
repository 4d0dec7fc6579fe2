"""The tool on published packages: nothing crashes, everything compiles, every site is accounted for.

Wheels are downloaded by hash once (``FSDP_MIGRATE_CORPUS`` names a directory to keep them in) and
unpacked into scratch directories.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fsdp_migrate import session, write
from fsdp_migrate.rule import Outcome
from fsdp_migrate.session import Run
from tests import accounting

pytestmark = pytest.mark.corpus

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
PINNED = re.findall(r"^([\w-]+)==(\S+)", REQUIREMENTS.read_text(), re.MULTILINE)
CONTROL = "vissl"  # everything in it is fairscale's
# What must stay true of packages whose migration has been read line by line: the share of sites
# rewritten or in review, in percent.
SHARES = {"torchtune": 100.0, "llama-recipes": 95.0, "zetascale": 85.0}


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All pinned wheels, downloaded by hash."""
    named = os.environ.get("FSDP_MIGRATE_CORPUS")
    directory = Path(named) if named else tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    options = ["--require-hashes", "--only-binary", ":all:", "--dest", str(directory)]
    subprocess.run([*command, *options, "--requirement", str(REQUIREMENTS)], check=True)
    return directory


@pytest.fixture
def unpack(wheels: Path, tmp_path: Path) -> Iterator[Callable[[str, str], Path]]:
    def unpacked(name: str, version: str) -> Path:
        stem = f"{name.replace('-', '_')}-{version}"
        (wheel,) = [w for w in wheels.glob("*.whl") if w.name.lower().startswith(stem)]
        target = tmp_path / name
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
        return target

    yield unpacked
    shutil.rmtree(tmp_path)


def report(name: str, run: Run) -> str:
    count = run.result.count
    return (
        f"{name}: {len(run.result.decisions)} sites, {count(Outcome.REWRITTEN)} rewritten, "
        f"{count(Outcome.REVIEW)} review, {count(Outcome.LEFT)} left, {run.seconds:.1f} s"
    )


@pytest.mark.parametrize(("name", "version"), PINNED, ids=[name for name, _ in PINNED])
def test_package(name: str, version: str, unpack: Callable[[str, str], Path]) -> None:
    root = unpack(name, version)
    before = {p: p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
    sources = accounting.read(root)
    run = session.run([root])
    print(report(name, run))
    assert not [p for p in run.result.problems if p.ours], "a file could not be edited"
    for path, new in run.result.changes.items():
        compile(new, str(path), "exec", dont_inherit=True)

    write.write(root, run.result.changes)
    after = {p: t for p, t in accounting.read(root).items() if not p.endswith("fsdp2_support.py")}
    for decision in run.result.decisions:
        decision.site.module.source.display = str(decision.site.module.path.relative_to(root))
    assert accounting.unaccounted(sources, run.result.decisions, after) == []
    untouched = [p for p in before if p not in run.result.changes]
    assert all(p.read_bytes() == before[p] for p in untouched)

    again = session.run([root])
    assert not again.result.changes, "a second run changes something"
    if name == CONTROL:
        assert not run.result.decisions
        assert not run.result.changes
    assert 100 * run.result.coverage >= SHARES.get(name, 0), report(name, run)
