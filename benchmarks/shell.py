"""What a command costs when it is run from the shell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# With the bytecode that the first run leaves, as when it is installed, whatever this shell says.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


class OutOfTime(Exception):
    """A command took more CPU time than it was given."""


@dataclass(frozen=True)
class Cost:
    wall: float  # seconds
    cpu: float  # seconds, of all its processes
    memory: int  # bytes, of the largest one


def run(
    command: Sequence[str],
    directory: Path,
    *,
    may_end_with: Sequence[int] = (0, 1),
    paths: Sequence[Path] = (),
    limit: int | None = None,
) -> Cost:
    """What a command costs, with every process it starts; ``paths`` come first on ``PYTHONPATH``.

    Args:
        limit: seconds of CPU time after which it is stopped.

    Raises:
        OutOfTime: it took longer than ``limit``.
        SystemExit: it ended otherwise than with 0 or 1, which mean "nothing to do" and "done".
    """
    given = [*map(str, paths), *filter(None, [ENVIRONMENT.get("PYTHONPATH")])]
    if limit is not None:
        command = ["sh", "-c", f'ulimit -t {limit}; exec "$@"', "sh", *command]
    started = time.perf_counter()
    with subprocess.Popen(
        command,
        cwd=directory,
        env={**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(given)} if given else ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if limit is not None and -process.returncode in (signal.SIGXCPU, signal.SIGKILL):
        raise OutOfTime
    if process.returncode not in may_end_with:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    wall = time.perf_counter() - started
    unit = 1 if sys.platform == "darwin" else 1024
    return Cost(wall, used.ru_utime + used.ru_stime, used.ru_maxrss * unit)
