"""Watch over a run until it ends, hangs, or fails."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fsdp_migrate.verify.inject.boot import STACKS_SIGNAL
from fsdp_migrate.verify.launch import processes

_POLL_S = 0.1
_STACKS_S = 3.0
_PEERS_S = 10.0
"""How long the launcher may take to end the other ranks once one has failed."""


@dataclass(frozen=True)
class Watched:
    """What was seen. ``hung`` means it was stopped for silence; ``code`` is the exit code."""

    code: int
    seconds: float
    hung: bool
    silent_for: float
    slowest_gap: float


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a run may stay silent, in seconds: ``start`` before the first optimizer step,
    ``steady`` after it."""

    start: float
    steady: float


class Running(Protocol):
    """Something that was started and will end."""

    def poll(self) -> int | None:
        """The exit code once it has ended, negative for a signal; None before."""

    def wait(self, timeout: float) -> None:
        """Come back when it has ended, or after ``timeout`` seconds at the latest."""


class Command:
    """A command line, started in a session of its own with its output in ``log``.

    Raises :class:`OSError` when it cannot be started.
    """

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as output:
            self._process = subprocess.Popen(
                command,
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def poll(self) -> int | None:
        """See :class:`Running`."""
        return self._process.poll()

    def wait(self, timeout: float) -> None:
        """See :class:`Running`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=timeout)


def watch(
    running: Running,
    *,
    run: str,
    folder: Path,
    logs: Path,
    patience: Patience,
    on_step: Callable[[int], None],
) -> Watched:
    """Come back when no process of the run is left.

    A sign of life is any change in the records, pulses or logs of any rank. When there is none for
    too long, every rank is asked for its stacks by signal, and the run is killed. ``on_step`` is
    called with the number of optimizer steps done, whenever it grows.
    """
    try:
        return _watch(running, time.monotonic(), run, folder, logs, patience, on_step)
    finally:
        # Also on Ctrl-C: nothing of the run may outlive us.
        processes.end_all(run, folder)
        running.wait(5.0)


def _watch(
    running: Running,
    started: float,
    run: str,
    folder: Path,
    logs: Path,
    patience: Patience,
    on_step: Callable[[int], None],
) -> Watched:
    seen: object = None
    steps, begun = 0, False
    life = time.monotonic()
    slowest = 0.0
    failed_at: float | None = None
    while (code := running.poll()) is None:
        now = time.monotonic()
        signs = _signs(folder, logs)
        if signs != seen:
            if begun:
                slowest = max(slowest, now - life)
            seen, life = signs, now
            done = [read_pulse(path)[1] for path in folder.glob("rank-*.pulse")]
            begun = begun or any(done)
            if min(done, default=0) > steps:
                steps = min(done)
                on_step(steps)
        if now - life > (patience.steady if begun else patience.start):
            _ask_for_stacks(run, folder)
            return Watched(-1, now - started, True, now - life, slowest)
        failed = any(folder.glob("exception-*.json")) or (folder / "spawns").exists()
        if failed_at is None and failed:
            failed_at = now
        if failed_at is not None and now - failed_at > _PEERS_S:
            processes.end_all(run, folder)
        time.sleep(_POLL_S)
    seconds = time.monotonic() - started
    last = min((read_pulse(path)[1] for path in folder.glob("rank-*.pulse")), default=0)
    if last > steps:
        on_step(last)
    return Watched(code, seconds, False, 0.0, slowest)


def _signs(folder: Path, logs: Path) -> list[tuple[str, int, int]]:
    signs = []
    for place in (*folder.iterdir(), *logs.glob("**/*.log")):
        with contextlib.suppress(OSError):
            state = place.stat()
            signs.append((str(place), state.st_size, state.st_mtime_ns))
    return sorted(signs)


def read_pulse(path: Path) -> tuple[int, int, str, str, str]:
    """Collectives issued, steps done, phase, last operation and its state, from a pulse file.

    Zeros and dashes when the rank has written none yet.
    """
    try:
        words = path.read_text(encoding="ascii", errors="replace").split()
        return int(words[1]), int(words[2]), words[3], words[4], words[5]
    except (OSError, ValueError, IndexError):
        return 0, 0, "-", "-", "-"


def _ask_for_stacks(run: str, folder: Path) -> None:
    """Let every rank dump the stacks of its threads, and wait until the files stop growing."""
    alive = processes.of_run(run, folder)
    for pid in processes.marked(folder):
        # Only processes that registered the handler: to any other the signal is deadly.
        if pid in alive and (folder / f"stacks-{pid}.txt").exists():
            with contextlib.suppress(OSError):
                os.kill(pid, STACKS_SIGNAL)
    deadline = time.monotonic() + _STACKS_S
    sizes: list[int] = []
    while time.monotonic() < deadline:
        time.sleep(0.3)
        now = [path.stat().st_size for path in sorted(folder.glob("stacks-*.txt"))]
        if now == sizes and all(now):
            break
        sizes = now
