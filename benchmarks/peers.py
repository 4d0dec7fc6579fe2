"""Beside other codemods on LibCST: ``python benchmarks/peers.py``.

Three published packages of ``tests/corpus/requirements.txt`` are downloaded by hash, bump-pydantic
and torchfix are installed into an environment of their own. Each tool is run on every package from
the shell. The tools look for other things (those two parse every file they are given), so that the
ratio says what a user waits for, not which is written better. CPU time, all processes together;
nothing is written. It takes a quarter of an hour, nearly all of it bump-pydantic's.

Bar: a dry run costs no more than the dearer of the two.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from shell import Cost, run

PACKAGES = frozenset({"torchtune", "accelerate", "llama-recipes"})
PEERS = ("bump-pydantic==0.8.0", "torchfix==0.7.0")
COLUMNS = "{:<18}{:>7}{:>8}{:>8}{:>9}{:>9}"
PARSE = """\
import sys
from pathlib import Path
import libcst
for path in sorted(Path(sys.argv[1]).rglob("*.py")):
    try:
        libcst.parse_module(path.read_bytes())
    except libcst.ParserSyntaxError:
        pass
"""


def commands(peers: Path) -> dict[str, list[str]]:
    tool = [sys.executable, "-m", "fsdp_migrate"]
    return {
        "parse_module": [sys.executable, "-c", PARSE, "."],
        "fsdp-migrate": [*tool, "rewrite", "--dry-run", "--jobs", "1", "."],
        "bump-pydantic": [str(peers / "bin" / "bump-pydantic"), "--diff", "."],
        "torchfix": [str(peers / "bin" / "torchfix"), "--select", "ALL", "-j", "1", "."],
    }


def measure(tree: Path, peers: Path) -> dict[str, Cost]:
    """What each tool costs on every package of a tree."""
    files = list(tree.rglob("*.py"))
    lines = sum(path.read_bytes().count(b"\n") for path in files) / 1000
    costs: dict[str, Cost] = {}
    for name, command in commands(peers).items():
        each = [run(command, package) for package in sorted(tree.iterdir())]
        total = sum(c.cpu for c in each)
        costs[name] = Cost(sum(c.wall for c in each), total, max(c.memory for c in each))
        ratio = total / costs["parse_module"].cpu
        row = (len(files), f"{lines:.0f}", f"{total:.1f}", f"{ratio:.2f}")
        print(COLUMNS.format(name, *row, costs[name].memory >> 20), flush=True)
    return costs


def main() -> int:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.corpus import packages

    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        peers = scratch / "peers"
        venv.create(peers, with_pip=True)
        pip = [str(peers / "bin" / "python"), "-m", "pip", "install", "-q", *PEERS]
        subprocess.run(pip, check=True)
        wheels = packages.download(scratch)
        tree = scratch / "packages"
        for package in (p for p in packages.PINNED if p.name in PACKAGES):
            packages.unpack(package, wheels, tree)
        print(COLUMNS.format("", "files", "kLOC", "CPU s", "times", "peak MB"))
        costs = measure(tree, peers)
        slow = costs["fsdp-migrate"].cpu > max(costs["bump-pydantic"].cpu, costs["torchfix"].cpu)
    print("SLOW" if slow else "no dearer than other codemods")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
