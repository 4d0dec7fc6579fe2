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

    limit, size = sys.getrecursionlimit(), threading.stack_size()
    thread = threading.Thread(target=call, daemon=True)
    # Before it starts: on a busy machine it may be deep down before this thread goes on.
    sys.setrecursionlimit(max(limit, DEPTH))
    try:
        threading.stack_size(STACK)
        thread.start()
    except (RuntimeError, ValueError):  # not that much address space: do without
        sys.setrecursionlimit(limit)
        return function
    finally:
        threading.stack_size(size)

    def wait() -> T:
        try:
            thread.join()
        finally:
            sys.setrecursionlimit(limit)
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
