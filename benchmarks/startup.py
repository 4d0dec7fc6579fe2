"""How long the commands take that must answer at once: ``python benchmarks/startup.py``.

Bar: 150 ms each, from the shell.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

BAR = 0.150
RUNS = 15
COMMANDS = ("--version", "--help", "check --help", "explain", "explain FSDP101", "explain no_sync")


def measured(command: Sequence[str]) -> list[float]:
    """Wall times of one command, in seconds; the first run, which fills caches, is not counted."""
    times = []
    for _ in range(RUNS + 1):
        started = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - started)
    return times[1:]


def main() -> int:
    bare = statistics.median(measured([sys.executable, "-c", "pass"]))
    print(f"{'python -c pass':<28} median {1000 * bare:4.0f} ms")
    slow = False
    for command in COMMANDS:
        times = measured([sys.executable, "-m", "fsdp_migrate", *command.split()])
        middle = statistics.median(times)
        slow |= middle > BAR
        print(
            f"{'fsdp-migrate ' + command:<28} median {1000 * middle:4.0f} ms, "
            f"best {1000 * min(times):4.0f} ms (bar {1000 * BAR:.0f} ms)"
            f"{'  SLOW' if middle > BAR else ''}"
        )
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
