"""Room for large code: a thousand ``elif`` nest a thousand levels deep in every tree."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

STACK = 512 * 2**20  # address space; only what is used becomes memory
DEPTH = 20_000

T = TypeVar("T")


class _Limit:
    """The recursion limit, which all threads share: lifted for as long as any of ours runs.

    Whoever waits may be interrupted, and then the thread goes on. Python 3.11 ends the whole
    process where the limit falls below the depth that another thread has reached.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._before = 0

    def lift(self) -> None:
        with self._lock:
            self._running += 1
            if self._running == 1:
                self._before = sys.getrecursionlimit()
                sys.setrecursionlimit(max(self._before, DEPTH))

    def lower(self) -> None:
        with self._lock:
            self._running -= 1
            if self._running == 0:
                sys.setrecursionlimit(self._before)


_limit = _Limit()


def with_deep_stack(function: Callable[[], T]) -> T:
    """Call ``function`` where it may recurse deeply, and return or raise what it does.

    The caller only waits, so Ctrl-C is answered at once even while native code is running.
    """
    return beside(function)()


def beside(function: Callable[[], T]) -> Callable[[], T]:
    """Begin to call ``function`` in a thread of its own, where it may recurse deeply.

    What is answered waits for it, and returns or raises what it does. A thread that nobody waits
    for does not keep the process alive.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)
        finally:
            _limit.lower()

    size = threading.stack_size()
    thread = threading.Thread(target=call, daemon=True)
    # Before it starts: on a busy machine it may be deep down before this thread goes on.
    _limit.lift()
    try:
        threading.stack_size(STACK)
        thread.start()
    except (RuntimeError, ValueError):  # not that much address space: do without
        _limit.lower()
        return function
    finally:
        threading.stack_size(size)

    def wait() -> T:
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    return wait


@contextmanager
def without_collector() -> Iterator[None]:
    """Without garbage collection: trees of millions of nodes live to the end of a run, and looking
    through them for garbage again and again takes more time than making them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
