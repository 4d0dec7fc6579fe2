"""The same function over many items, on several processes when that pays.

Processes are forked, so that what the function and the items refer to (trees, tables) is there
already and only results travel. Where there is no fork, everything runs in this process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # loaded when there is enough to do
    from concurrent.futures import Future, ProcessPoolExecutor

Item = TypeVar("Item")
Answer = TypeVar("Answer")
SHARES = 8  # parts of the work for each process, so that none waits long for the others


@dataclass
class _State:
    """What forked processes find, and whether they are still wanted."""

    function: Callable[[Any], Any] | None = None
    items: Sequence[Any] = ()
    stopped: bool = False


_state = _State()


@dataclass(frozen=True)
class Crash:
    """In place of an answer: the process ended while it was at this item."""


def usable() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def each(
    function: Callable[[Item], Answer], items: Sequence[Item], *, jobs: int, least: int
) -> list[Answer | Crash]:
    """The answers for ``items``, in order; on ``jobs`` processes from ``least`` items on.

    What ``function`` raises is raised here. A process that ends costs the item it was at.
    """
    jobs = min(jobs, len(items))
    if jobs < 2 or len(items) < least or not hasattr(os, "fork"):
        return [function(item) for item in items]
    _state.function, _state.items, _state.stopped = function, items, False
    try:
        answers, lost = _shared_out(len(items), jobs)
        if lost:
            _one_by_one(lost, answers)
    finally:
        _state.function, _state.items = None, ()
    return [answers[index] for index in range(len(items))]


def stop() -> None:
    """End every process at once: what they do is no longer wanted."""
    _state.stopped = True
    import multiprocessing

    for process in multiprocessing.active_children():
        process.kill()


def _shared_out(count: int, jobs: int) -> tuple[dict[int, Any], list[int]]:
    """Answers by index, and the indices for which a process ended."""
    from concurrent.futures.process import BrokenProcessPool

    step = -(-count // (jobs * SHARES))
    shares = [range(start, min(start + step, count)) for start in range(0, count, step)]
    answers: dict[int, Any] = {}
    lost: list[int] = []
    with _executor(jobs) as executor, _ended_when_unwanted():
        running: list[tuple[range, Future[list[Any]] | None]] = []
        for share in shares:
            try:
                running.append((share, executor.submit(_answer, share)))
            except BrokenProcessPool:
                running.append((share, None))
        for share, future in running:
            try:
                if future is None:
                    raise BrokenProcessPool
                answers.update(zip(share, future.result(), strict=True))
            except BrokenProcessPool:
                lost += share
    return answers, lost


def _one_by_one(indices: Sequence[int], answers: dict[int, Any]) -> None:
    """Find out which item it was that ended a process; the others get their answers."""
    from concurrent.futures.process import BrokenProcessPool

    waiting = list(indices)
    while waiting and not _state.stopped:
        with _executor(1) as executor, _ended_when_unwanted():
            try:
                while waiting:
                    index = waiting[0]
                    [answers[index]] = executor.submit(_answer, range(index, index + 1)).result()
                    waiting.pop(0)
            except BrokenProcessPool:
                answers[waiting.pop(0)] = Crash()
    answers.update(dict.fromkeys(waiting, Crash()))


@contextmanager
def _ended_when_unwanted() -> Iterator[None]:
    """Leaving an executor waits for all that it was given, after an interruption too."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception):
            stop()
        raise


def _executor(jobs: int) -> ProcessPoolExecutor:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    context = multiprocessing.get_context("fork")
    return ProcessPoolExecutor(jobs, mp_context=context, initializer=_leave_interrupts)


def _leave_interrupts() -> None:
    """Ctrl-C reaches every process of a terminal; only the first one answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _answer(share: range) -> list[Any]:
    assert _state.function is not None
    return [_state.function(_state.items[index]) for index in share]
