"""How long the commands take that must answer at once: ``python benchmarks/startup.py``.

Bar: 150 ms each. Judged by the median of the CPU time, which other load on the machine disturbs
least; on an idle machine the wall time is hardly more.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from shell import ENVIRONMENT

BAR = 150
RUNS = 15
COMMANDS = ("--version", "--help", "check --help", "explain", "explain FSDP101", "explain no_sync")


def measured(command: Sequence[str]) -> tuple[float, float, float]:
    """Median CPU time, median and best wall time of a command, in milliseconds.

    The first run, which fills caches, is not counted.
    """
    cpu, wall = [], []
    for _ in range(RUNS + 1):
        before, started = spent(), time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=ENVIRONMENT)
        wall.append(1000 * (time.perf_counter() - started))
        cpu.append(1000 * (spent() - before))
    return statistics.median(cpu[1:]), statistics.median(wall[1:]), min(wall[1:])


def spent() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    slow = False
    bare = [sys.executable, "-c", "pass"]
    rows = [("python -c pass", bare)]
    rows += [(c, [sys.executable, "-m", "fsdp_migrate", *c.split()]) for c in COMMANDS]
    for name, command in rows:
        cpu, wall, best = measured(command)
        slow |= cpu > BAR
        print(
            f"{name:<16} CPU {cpu:4.0f} ms, wall {wall:4.0f} ms, best {best:4.0f} ms"
            f"{'' if command is bare else f'  (bar {BAR} ms)'}{'  SLOW' if cpu > BAR else ''}"
        )
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
