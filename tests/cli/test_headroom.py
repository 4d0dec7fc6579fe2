"""The recursion limit, which all threads share, while some of them recurse deeply."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from fsdp_migrate.cli import headroom

# A thread that is deep down when whoever waits for it is interrupted goes on, and ends by itself.
INTERRUPTED = """\
import signal
import sys
import threading
import time

from fsdp_migrate.cli import headroom

before = sys.getrecursionlimit()
deep, go_on = threading.Event(), threading.Event()


def down(levels):
    if levels:
        return down(levels - 1)
    deep.set()
    go_on.wait()
    print(sorted([[2], [1]], key=lambda item: [str(part) for part in item]))


def interrupt(*_):
    raise KeyboardInterrupt


signal.signal(signal.SIGALRM, interrupt)
answer = headroom.beside(lambda: down(before + 2000))
deep.wait()
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    answer()
except KeyboardInterrupt:
    go_on.set()
    while sys.getrecursionlimit() != before:  # the thread puts it back
        time.sleep(0.01)
"""


def down(levels: int) -> int:
    return down(levels - 1) if levels else 0


def test_an_interruption_leaves_the_thread_its_room() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (0, "[[1], [2]]\n"), ended.stderr[:2000]


def test_one_that_ends_first_leaves_the_other_its_room() -> None:
    before = sys.getrecursionlimit()
    go_on = threading.Event()
    other = headroom.beside(lambda: go_on.wait() and down(before + 2000))
    assert headroom.with_deep_stack(lambda: down(before + 2000)) == 0
    go_on.set()
    assert other() == 0
    assert sys.getrecursionlimit() == before


def test_what_it_raises_is_raised_and_the_limit_is_back() -> None:
    before = sys.getrecursionlimit()
    with pytest.raises(ZeroDivisionError):
        headroom.with_deep_stack(lambda: 1 // down(before + 10))
    assert sys.getrecursionlimit() == before
