"""The tool on published packages: no crash, output that compiles, an outcome for every site."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fsdp_migrate.cli import session
from fsdp_migrate.rewriting import write
from tests.corpus import packages
from tests.corpus.packages import PINNED, Package
from tests.helpers import accounting, binding
from tests.tools.documents import CORPUS

pytestmark = pytest.mark.corpus

CONTROL = "vissl"  # everything in it is fairscale's
# What must stay true: the share of sites rewritten or in review, in percent.
SHARES = {"torchtune": 100, "llama-recipes": 95, "zetascale": 85}


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packages.download(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def unpack(wheels: Path, tmp_path: Path) -> Iterator[Callable[[Package], Path]]:
    yield lambda package: packages.unpack(package, wheels, tmp_path)
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("package", PINNED, ids=[p.name for p in PINNED])
def test_package(package: Package, unpack: Callable[[Package], Path]) -> None:
    root = unpack(package)
    before = {p: p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
    sources = accounting.read(root)
    texts = packages.texts(root)
    run = session.run([root])
    row = packages.row(package, root, run)
    assert not [p for p in run.result.problems if p.ours], "a file could not be edited"
    for path, new in run.result.changes.items():
        compile(new, str(path), "exec", dont_inherit=True)

    write.write(root, run.result.changes)
    after = {p: t for p, t in accounting.read(root).items() if not p.endswith("fsdp2_support.py")}
    for decision in run.result.decisions:
        decision.site.module.source.display = str(decision.site.module.path.relative_to(root))
    assert accounting.unaccounted(sources, run.result.decisions, after) == []
    assert binding.complaints(texts, packages.texts(root)) == []
    untouched = [p for p in before if p not in run.result.changes]
    assert all(p.read_bytes() == before[p] for p in untouched)

    again = session.run([root])
    assert not again.result.changes, "a second run changes something"
    if package.name == CONTROL:
        assert not run.result.decisions
        assert not run.result.changes
    assert row.share >= SHARES.get(package.name, 0), row

    # What the documentation says is what happens: `make documents` renews it.
    pattern = rf"^\| {package.name} {re.escape(package.version)} \|(.*)\|.*\|.*\|$"
    documented = re.search(pattern, CORPUS.read_text(encoding="utf-8"), re.MULTILINE)
    assert documented is not None
    counts = [int(cell.replace(",", "")) for cell in documented.group(1).split("|")]
    assert counts == [row.files, row.sites, row.rewritten, row.review, row.left]
