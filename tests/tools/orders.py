"""Whether answers depend on orders that mean nothing: ``python -m tests.tools.orders [PATH ...]``.

Migrates every project below the paths, by themselves the examples of the rules' pages and the
fixtures, in processes that hash texts differently (``PYTHONHASHSEED``), and in some that also put
values into their sets in another order. All must decide and write the same, byte for byte. A path
that has a file of Python's is one project, as a repository is.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import cast
from zlib import crc32

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.migration import engine
from tests.helpers.migrating import REGISTRY, ROOT, files, migrate

TOP = Path(__file__).parents[2]
ORDERS = ("", "", "another", "a third")  # what modules are numbered by besides their names
Projects = Mapping[str, Mapping[str, str]]


def examples() -> dict[str, dict[str, str]]:
    """The examples of every page, as projects."""
    found: dict[str, dict[str, str]] = {}
    for code, rule in sorted(REGISTRY.rules.items()):
        for example in rule.examples:
            sources = {"example.py": example.before}
            sources |= {path: before for path, (before, _) in example.files.items()}
            if all(path.endswith(".py") for path in sources) and example.language == "python":
                found[f"{code} {example.title}"] = sources
    return found


def below(path: Path) -> Iterator[Path]:
    """The projects below a path: directories with files of Python's."""
    if any(path.glob("*.py")):
        yield path
        return
    for inner in sorted(each for each in path.iterdir() if each.is_dir()):
        if inner.name != "after":
            yield from below(inner)


def readable(project: Path) -> dict[str, str]:
    """The files of a project that parse."""
    found = files(project)
    _, problems = engine.read(
        {ROOT / n: t.encode() for n, t in found.items()}, {ROOT / n: n for n in found}
    )
    return {n: t for n, t in found.items() if n not in {p.display for p in problems}}


def told(projects: Projects, order: str) -> dict[str, str]:
    """What a run says and writes of every project, as one text."""
    number = cached_property(lambda module: crc32(f"{order}{module.display}".encode()))
    number.__set_name__(Module, "number")
    Module.number = number  # type: ignore[method-assign]
    found: dict[str, str] = {}
    for name, sources in projects.items():
        result, after = migrate(sources)
        said = (
            f"{d.site.module.display}:{d.site.module.position(d.site.node)} {d.code}"
            f" {d.outcome} {d.message} ({d.help})"
            for d in result.decisions
        )
        changed = (after[path] for path in sorted(after) if after[path] != sources.get(path))
        found[name] = "\n".join([*said, *map(str, result.not_followed), *changed])
    return found


def differing(projects: Projects, orders: Sequence[str] = ORDERS) -> dict[str, str]:
    """The projects that some process migrates in another way than the first, and how."""
    runs = [_in_a_process(projects, order, seed) for seed, order in enumerate(orders, 1)]
    found: dict[str, str] = {}
    for name, first in runs[0].items():
        other = next((run[name] for run in runs[1:] if run[name] != first), None)
        if other is not None:
            lines = difflib.unified_diff(first.splitlines(), other.splitlines(), lineterm="", n=1)
            found[name] = "\n".join(lines)
    return found


def _in_a_process(projects: Projects, order: str, seed: int) -> dict[str, str]:
    command = [sys.executable, "-m", "tests.tools.orders", "--told", order]
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    done = subprocess.run(
        command,
        input=json.dumps(projects),
        cwd=TOP,
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return cast("dict[str, str]", json.loads(done.stdout))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--told", help="tell what one order gives of projects in standard input")
    given = parser.parse_args()
    if given.told is not None:
        print(json.dumps(told(json.load(sys.stdin), given.told)))
        return 0
    projects = {} if given.paths else examples()
    for path in given.paths or [TOP / "fixtures"]:
        projects |= {str(each): readable(each) for each in below(path.resolve())}
    found = differing(projects)
    for name, lines in found.items():
        print(f"{name}\n{lines}\n")
    print(f"{len(projects)} projects, {len(found)} of which differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
