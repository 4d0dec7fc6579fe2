"""Whether what is decided depends on what means nothing: ``python -m tests.tools.stability PATH``.

Every project below the paths is decided as it is, and then changed in a way that means nothing: its
files are read in another order, it lies under another path, a file in it speaks of FSDP and has
nothing to do with it. All must say the same of each site. ``--more`` has more files read than
needed: one is added that imports all modules and does nothing with them. What is then said of files
that were looked at before differs only where a file that was not read has something to tell.
"""

from __future__ import annotations

import argparse
import difflib
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from unittest import mock

from fsdp_migrate.cli import session
from fsdp_migrate.migration import engine
from fsdp_migrate.planning.result import Result
from tests.tools.orders import below

WORDS = '''"""Speaks of FSDP, of FSDPStrategy and of FullyShardedDataParallel; has nothing of it."""

NAMES = ("fsdp", "FSDP", "FullyShardedDataParallel", "FSDPStrategy")
'''
UNRELATED = "speaks_of_it.py"
IMPORTING = "imports_all.py"
CHANGES = ("order", "another order", "path", "words", "words below")
MORE = "imports"


def decided(root: Path) -> dict[str, str]:
    """What is said of each site below a directory, by its place; and of what is not followed."""
    result = session.run([root], edit=False, quiet=True).result
    found: dict[str, str] = {}
    for decision in result.decisions:
        site = decision.site
        file = site.module.path.relative_to(root).as_posix()
        place = f"{file}:{site.module.position(site.node)} {site.construct.shown} {decision.code}"
        said = f"{decision.outcome.value}: {decision.message} ({decision.help})"
        found[place] = said.replace(f"{root.parent}/", "")
    return found | dict(_not_followed(result, root))


def _not_followed(result: Result, root: Path) -> Iterator[tuple[str, str]]:
    for each in result.not_followed:
        shown = each.display.removeprefix(f"{root}/")
        yield f"{shown}:{each.line} not followed", each.why


def changed(root: Path, change: str, scratch: Path) -> dict[str, str]:
    """As :func:`decided`, of a copy that is changed in a way that means nothing."""
    copy = scratch / ("elsewhere/below/another" if change == "path" else root.name)
    shutil.copytree(root, copy, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    inner = sorted({path.parent for path in copy.rglob("*.py")}, key=lambda p: len(p.parts))
    added: set[Path] = set()
    if "words" in change:
        added.add((inner[-1] if "below" in change else copy) / UNRELATED)
    for path in added:
        path.write_text(WORDS, encoding="utf-8")
    if change == MORE:
        path = copy / IMPORTING
        path.write_text("".join(_imports(copy)), encoding="utf-8")
        added.add(path)
    places = {path.relative_to(copy).as_posix() for path in added}
    with mock.patch.object(engine, "read", _shuffled(change) if "order" in change else engine.read):
        found = decided(copy)
    return {place: said for place, said in found.items() if place.split(":")[0] not in places}


def _imports(root: Path) -> Iterator[str]:
    """The import statements of all that has a dotted name below a directory."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts and all(part.isidentifier() for part in parts):
            yield f"import {'.'.join(parts)}\n"


def _shuffled(change: str) -> Callable[..., object]:
    read = engine.read

    def shuffled(files: Mapping[Path, bytes], display: Mapping[Path, str]) -> object:
        paths = list(files)
        random.Random(change).shuffle(paths)
        return read({path: files[path] for path in paths}, display)

    return shuffled


def differing(root: Path, changes: Sequence[str] = CHANGES) -> dict[str, list[str]]:
    """The changes after which something else is said of a site, and what."""
    with tempfile.TemporaryDirectory() as scratch:
        found: dict[str, list[str]] = {}
        first = changed(root, "", Path(scratch, "first"))
        for number, change in enumerate(changes):
            other = changed(root, change, Path(scratch, str(number)))
            if change == MORE:
                before = {place.split(":")[0] for place in first}
                other = {p: said for p, said in other.items() if p.split(":")[0] in before}
            lines = list(difflib.unified_diff(_lines(first), _lines(other), lineterm="", n=0))
            if lines:
                found[change] = lines[2:]
        return found


def _lines(found: Mapping[str, str]) -> list[str]:
    return [f"{place} {said}" for place, said in sorted(found.items())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--whole", action="store_true", help="each path is one project")
    parser.add_argument("--change", action="append", help="only this change")
    parser.add_argument("--more", action="store_true", help="have more files read")
    given = parser.parse_args()
    unstable = count = 0
    for path in given.paths:
        for root in [path.resolve()] if given.whole else below(path.resolve()):
            count += 1
            found = differing(root, [MORE] if given.more else given.change or CHANGES)
            for change, lines in found.items():
                print(f"{root}: {change}", *lines, sep="\n", flush=True)
            unstable += bool(found)
    print(f"{count} projects, {unstable} of which differ")
    return 1 if unstable else 0


if __name__ == "__main__":
    sys.exit(main())
