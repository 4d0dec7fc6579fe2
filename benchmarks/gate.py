"""What a tree without FSDP1 costs: ``python benchmarks/gate.py [DIRECTORY]``.

Without a directory, a tree as large as an installed torch is made: 2,285 files, 1.2 million lines.
The reference walks the tree and reads every Python file, and does nothing else.

Bar: at most 0.25 s more than the reference, the start of the process included. Judged by CPU time,
which other load on the machine disturbs least.
"""

from __future__ import annotations

import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from shell import ENVIRONMENT

from fsdp_migrate.discovery import search, walk

BAR = 0.25
RUNS = 7
FILES, LINES = 2285, 1_200_000
WORDS = ("import", "model", "self", "return", "value", "shape", "device", "tensor", "for", "None")
REFERENCE = """
import os, sys
for directory, _, files in os.walk(sys.argv[1]):
    for name in files:
        if name.endswith((".py", ".pyi")):
            with open(os.path.join(directory, name), "rb") as file:
                file.read()
"""


def make(root: Path) -> None:
    """Files of very different sizes in nested directories, of plausible lines."""
    choose = random.Random(0)
    lines = [
        " " * choose.choice((0, 4, 4, 8, 8, 12))
        + " ".join(choose.choices(WORDS, k=choose.randrange(1, 10)))
        for _ in range(5000)
    ]
    sizes = [choose.lognormvariate(5, 1.3) for _ in range(FILES)]
    scale = LINES / sum(sizes)
    for number, size in enumerate(sizes):
        path = root / f"pkg{number % 40}" / f"sub{number % 7}" / f"m{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(choose.choices(lines, k=max(1, int(size * scale)))) + "\n")


def read(root: Path) -> tuple[int, int]:
    """Files and lines, by the plainest walk there is."""
    files = lines = 0
    for directory, _, names in os.walk(root):
        for name in names:
            if name.endswith(walk.SUFFIXES):
                with open(os.path.join(directory, name), "rb") as file:
                    data = file.read()
                files += 1
                lines += data.count(b"\n")
    return files, lines


def spent() -> float:
    """CPU seconds of this process and of those it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def cost(function: Callable[[], object]) -> tuple[float, float]:
    """Median CPU and wall time, in seconds; the first run fills caches and is not counted."""
    cpu, wall = [], []
    for _ in range(RUNS + 1):
        before, started = spent(), time.perf_counter()
        function()
        wall.append(time.perf_counter() - started)
        cpu.append(spent() - before)
    return statistics.median(cpu[1:]), statistics.median(wall[1:])


def process(command: Sequence[str], allowed: Sequence[int]) -> None:
    answer = subprocess.run(command, capture_output=True, check=False, env=ENVIRONMENT)
    if answer.returncode not in allowed:
        raise SystemExit(answer.stderr.decode())


def main() -> int:
    if len(sys.argv) > 1:
        return measure(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as directory:
        make(Path(directory))
        return measure(Path(directory))


def measure(root: Path) -> int:
    files, lines = read(root)
    found = search.find([root])
    print(f"{files:,} files, {lines:,} lines; {len(found.candidates)} could hold FSDP1")
    walk, inside = cost(lambda: read(root)), cost(lambda: search.find([root]))
    reference = cost(lambda: process([sys.executable, "-c", REFERENCE, str(root)], (0,)))
    command = [sys.executable, "-m", "fsdp_migrate", "check", str(root)]
    whole = cost(lambda: process(command, (0, 1)))
    more = whole[0] - reference[0]
    print("                            CPU     wall")
    rows = {
        "walk and read": walk,
        "gate": inside,
        "walk and read, a process": reference,
        "fsdp-migrate check": whole,
    }
    for name, (cpu, wall) in rows.items():
        print(f"{name:<25}{cpu:6.3f} s{wall:7.3f} s")
    print(f"gate: x {inside[0] / walk[0]:.2f} of walk and read")
    print(f"check: {more:.3f} s more (bar {BAR} s){'  SLOW' if more > BAR else ''}")
    return int(more > BAR)


if __name__ == "__main__":
    sys.exit(main())
