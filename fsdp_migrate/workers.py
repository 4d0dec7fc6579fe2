"""The same function over many items, on several processes when that pays.

Processes are forked, so that what the function and the items refer to (trees, tables) is there
already and only results travel. Where there is no fork, everything runs in this process.

``concurrent.futures`` is not used: its executor waits for processes that an interruption caught
between their start and their registration, for as long as those work.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # loaded when there is enough to do
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess

Item = TypeVar("Item")
Answer = TypeVar("Answer")
SHARES = 8  # parts of the work for each process, so that none waits long for the others


@dataclass(frozen=True)
class Crash:
    """In place of an answer: the process ended while it was at this item."""


@dataclass(frozen=True)
class _Raised:
    """In place of the answers for a share: what the function raised."""

    error: Exception


@dataclass(eq=False)
class _Worker:
    """A process, and the share of the work that it is at."""

    process: ForkProcess
    connection: Connection
    share: range = range(0)


@dataclass
class _Running:
    """The processes of this moment; ``lock`` is held while one is added."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    workers: dict[Connection, _Worker] = field(default_factory=dict)
    stopped: bool = False


_running = _Running()


def each(
    function: Callable[[Item], Answer], items: Sequence[Item], *, jobs: int, least: int
) -> list[Answer | Crash]:
    """The answers for ``items``, in order; on ``jobs`` processes from ``least`` items on.

    What ``function`` raises is raised here. A process that ends costs the item it was at.
    """
    jobs = min(jobs, len(items))
    if jobs < 2 or len(items) < least or not hasattr(os, "fork"):
        return [function(item) for item in items]
    _running.stopped = False

    def answer(share: range) -> list[Answer] | _Raised:
        try:
            return [function(items[index]) for index in share]
        except Exception as error:
            return _Raised(error)

    try:
        return _shared_out(answer, len(items), jobs)
    finally:
        _end_all()


def stop() -> None:
    """From any thread: end every process at once, for what they do is no longer wanted.

    What has no answer yet gets :class:`Crash`.
    """
    with _running.lock:
        _running.stopped = True
        for worker in _running.workers.values():
            worker.process.kill()


def _shared_out(answer: Callable[[range], Any], count: int, jobs: int) -> list[Any]:
    with _uninterrupted():  # an interruption of the import system may be lost
        from multiprocessing.connection import wait

    step = -(-count // (jobs * SHARES))
    waiting = deque(range(start, min(start + step, count)) for start in range(0, count, step))
    answers: dict[int, Any] = {}
    workers = _running.workers
    while len(answers) < count and not _running.stopped:
        while waiting and len(workers) < jobs and not _running.stopped:
            _start(answer)
        for worker in list(workers.values()):
            if waiting and not worker.share:
                worker.share = waiting.popleft()
                with suppress(OSError):  # it ended meanwhile: the next lines see that
                    worker.connection.send(worker.share)
        busy = [c for c, w in workers.items() if w.share]
        for ready in wait(busy) if busy else ():
            worker = workers[ready]  # type: ignore[index]  # only connections were waited for
            share, worker.share = worker.share, range(0)
            try:
                found = worker.connection.recv()
            except (EOFError, OSError):
                _end(worker)
                if len(share) == 1:
                    answers[share[0]] = Crash()
                else:  # which one it was, each alone will tell
                    waiting.extendleft(range(index, index + 1) for index in reversed(share))
                continue
            if isinstance(found, _Raised):
                raise found.error
            answers.update(zip(share, found, strict=True))
    return [answers.get(index, Crash()) for index in range(count)]


def _start(answer: Callable[[range], Any]) -> None:
    """Start one more process, unless none is wanted any more."""
    with _uninterrupted(), _running.lock:
        import multiprocessing

        context = multiprocessing.get_context("fork")
        if _running.stopped:
            return
        ours, theirs = context.Pipe()
        others = [ours, *_running.workers]
        process = context.Process(target=_serve, args=(answer, theirs, others), daemon=True)
        process.start()
        theirs.close()
        _running.workers[ours] = _Worker(process, ours)


def _serve(
    answer: Callable[[range], Any], connection: Connection, others: Sequence[Connection]
) -> None:
    """In a new process: answer shares until the other side goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the first process of a terminal answers it
    for other in others:
        other.close()
    with suppress(EOFError, OSError):
        while True:
            connection.send(answer(connection.recv()))


def _end(worker: _Worker) -> None:
    with _running.lock:
        del _running.workers[worker.connection]
    worker.connection.close()
    worker.process.kill()
    worker.process.join()


def _end_all() -> None:
    with _uninterrupted():
        for worker in list(_running.workers.values()):
            _end(worker)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits while processes are started and ended, so that none is forgotten."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
