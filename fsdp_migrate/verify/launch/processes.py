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
    in (torchrun puts its workers in sessions of their own), and every process in the session of a
    rank (a forked rank shows its parent's environment). Elsewhere those that left a start-up mark
    in ``folder``.
    """
    marks = marked(folder)
    proc = Path("/proc")
    if not proc.is_dir():
        return {pid for pid in marks if is_alive(pid)}
    found = set()
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        pid = int(entry.name)
        with contextlib.suppress(OSError):
            leader = os.getsid(pid)
            member = (pid in marks and _left(folder, pid)) or (leader in marks and leader != pid)
            if (member or run.encode() in (entry / "environ").read_bytes()) and is_alive(pid):
                found.add(pid)
    return found


def _left(folder: Path, pid: int) -> bool:
    """Whether the mark of ``pid`` was left by the process that has this number now: it has to be
    older than its mark, which a later process that got the same number is not."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    booted = time.time() - float(Path("/proc/uptime").read_text().split()[0])
    started = booted + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    marks = folder.glob(f"fork-{pid}")
    return any(started <= mark.stat().st_mtime + 0.5 for mark in marks)


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
