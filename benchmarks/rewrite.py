"""What a thousand lines of candidate code cost: ``python benchmarks/rewrite.py [DIRECTORY ...]``.

Without directories, the published packages of ``tests/corpus/requirements.txt`` are downloaded by
hash. Candidates are the files that mention FSDP. The reference parses them with
``libcst.parse_module``, in the same process and the same minute. CPU time, one worker, best of
three, taken in turns; nothing is written.

Bar: at most 130 ms CPU per thousand candidate lines to parse, trace, decide and render, every other
file that is read for it included, on a machine on which ``parse_module`` takes 50 ms for them. On
another, and in a slow hour of a shared one, the same in proportion: 2.6 times the reference. What
the gate takes before that is measured and told, and has a bar of its own (``gate.py``).
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import libcst

from fsdp_migrate.cli import headroom, session
from fsdp_migrate.discovery import search

BAR = 0.130
REFERENCE = 0.050
RUNS = 3
COLUMNS = "{:<16}{:>7}{:>7}{:>8}{:>8}{:>8}{:>8}{:>14}"


def cpu(*functions: Callable[[], object]) -> list[float]:
    """CPU seconds of the process, all threads together, of the best of a few runs of each.

    They take turns, so that a slow minute of the machine is one of all of them.
    """
    best = [float("inf")] * len(functions)
    for _ in range(RUNS):
        for index, function in enumerate(functions):
            gc.collect()  # what an earlier run left is not this one's
            started = time.process_time()
            function()
            best[index] = min(best[index], time.process_time() - started)
    return best


def parse(sources: Iterable[bytes]) -> None:
    for data in sources:
        try:
            libcst.parse_module(data)
        except libcst.ParserSyntaxError:
            continue


def main() -> int:
    if len(sys.argv) > 1:
        return measure([Path(argument) for argument in sys.argv[1:]])
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.corpus import packages

    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        wheels = packages.download(scratch)
        return measure([packages.unpack(p, wheels, scratch / "src") for p in packages.PINNED])


def measure(roots: list[Path]) -> int:
    session.run([roots[0]])  # imports and caches are not what is measured
    print(COLUMNS.format("", "files", "kLOC", "others", "whole", "gate", "check", "parse_module"))
    lines = spent = before = reference = 0.0
    for root in roots:
        found = search.find([root])
        size = sum(data.count(b"\n") for data in found.candidates.values()) / 1000
        if not size:
            continue
        sources = list(found.candidates.values())
        row = whole, gated, _, parsed = cpu(
            partial(session.run, [root]),
            partial(search.find, [root]),
            partial(session.run, [root], edit=False),
            partial(headroom.with_deep_stack, partial(parse, sources)),
        )
        print(
            COLUMNS.format(
                root.name,
                len(found.candidates),
                f"{size:.1f}",
                len(found.others),
                *(f"{1000 * seconds / size:.0f}" for seconds in row),
            )
        )
        lines, spent, reference = lines + size, spent + whole, reference + parsed
        before += gated
    if not lines:
        raise SystemExit("no candidates: nothing to measure")
    judged = spent - before
    slow = judged / reference > BAR / REFERENCE
    print(
        f"all: {1000 * judged / lines:.0f} ms CPU per candidate kLOC, {judged / reference:.2f} "
        f"times parse_module's {1000 * reference / lines:.0f} (bar {1000 * BAR:.0f} where that "
        f"takes {1000 * REFERENCE:.0f}: {BAR / REFERENCE:.1f} times); with the gate "
        f"{1000 * spent / lines:.0f} ms, {spent / reference:.2f} times{'  SLOW' if slow else ''}"
    )
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
