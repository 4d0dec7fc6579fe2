"""Find, signal and end the processes of one run, and no others."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path


def of_run(run: str, folder: Path) -> set[int]:
    """Ids of the live processes that belong to ``run``.

    On Linux every process that inherited the run's name in its environment, whatever session it is
    in: torchrun puts its workers in sessions of their own. Elsewhere those that left a start-up
    mark in ``folder``.
    """
    proc = Path("/proc")
    if not proc.is_dir():
        return {pid for pid in marked(folder) if is_alive(pid)}
    found = set()
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if run.encode() in (entry / "environ").read_bytes() and is_alive(int(entry.name)):
                found.add(int(entry.name))
    return found


def marked(folder: Path) -> dict[int, str]:
    """Process id -> rank (``x`` if unknown) of every process that came up with the recorder."""
    marks = (path.name.split("-") for path in folder.glob("boot-*-*"))
    return {int(parts[2]): parts[1] for parts in marks if parts[1] != "error"}


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return not Path("/proc").is_dir()
    return state not in ("Z", "X")


def end_all(run: str, folder: Path) -> None:
    """Kill what is left of the run. Asks first, so that launchers can clean up."""
    for number, patience in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
        alive = of_run(run, folder)
        for pid in alive:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and any(is_alive(pid) for pid in alive):
            time.sleep(0.05)
