"""How a process of ours ends: with an exit code that the work itself gave, whatever happens."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from fsdp_migrate.cli.exit_codes import BAD, SEE
from fsdp_migrate.errors import InputError

TRACEBACK = "FSDP_MIGRATE_TRACEBACK"


def run_to_end(work: Callable[[], int]) -> int:
    """The exit code of ``work``; whatever goes wrong ends in a sentence and 2."""
    # A terminal that cannot show a character is no reason to fail.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = work()
        sys.stdout.flush()
    except BrokenPipeError:  # fsdp-migrate check . | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SEE
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return BAD
    except InputError as error:
        from fsdp_migrate.cli import console

        console.problem(str(error))
        return BAD
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        from fsdp_migrate import shown

        sys.stderr.write(f"error: {shown.line(_defect(error))}\n")
        return BAD
    return code


@contextlib.contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end what is being done as Ctrl-C does, so that it cleans up; once, for
    cleaning up is not to be cut short."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        for each in kept:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # it may not change signals
        yield
        return
    kept = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    for each, handler in kept.items():
        if handler is not signal.SIG_IGN:  # nohup
            signal.signal(each, interrupt)
    try:
        yield
    finally:
        for each, handler in kept.items():
            signal.signal(each, handler)


def _defect(error: Exception) -> str:
    """What an exception that nobody expected looks like: one line, not a trace."""
    import traceback

    frame = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{frame.filename}:{frame.lineno}: {type(error).__name__}: {error} (this is a defect of "
        f"fsdp-migrate, please report it; {TRACEBACK}=1 shows the traceback)"
    )


def run_in_child(work: Callable[[], int]) -> int:
    """The exit code of ``work``, done in a child process, for code that is not ours runs in it.

    Such code can end a process at any moment, with any exit code. So only the word counts that the
    child writes into a pipe as the last thing it does; without it the answer is :data:`BAD`.
    """
    if not hasattr(os, "fork"):
        return run_to_end(work)
    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs = os.pipe()
    with _Signals() as signals:
        child = os.fork()
        if child == 0:
            os.close(ours)
            signals.give_back()
            signals.repeat(os.getpid())
            _serve(work, theirs)
        os.close(theirs)
        signals.child = child
        signals.repeat(child)
        _, status = os.waitpid(child, 0)
        signals.child = 0
    os.set_blocking(ours, False)  # what the work started may hold the other end for ever
    try:
        word = os.read(ours, 16)
    except BlockingIOError:
        word = b""
    finally:
        os.close(ours)
    if word.isdigit():
        return int(word)
    if signals.fatal:
        signal.signal(signals.fatal, signal.SIG_DFL)
        os.kill(os.getpid(), signals.fatal)
    code = os.waitstatus_to_exitcode(status)
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    sys.stderr.write(
        f"error: the process was ended {how} before its work was done, by a rule of the project's "
        "own or from outside; nothing is known of the result\n"
    )
    return BAD


def _serve(work: Callable[[], int], pipe: int) -> None:
    """In the child: do the work, write the word, and run nothing after it."""
    process = os.getpid()
    code = BAD
    try:
        code = run_to_end(work)
    except BaseException as error:  # SystemExit among them: the work itself raises none
        if os.environ.get(TRACEBACK):
            sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.write(f"error: a rule of the project's own raised {type(error).__name__}\n")
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = BAD
    if os.getpid() == process:  # a rule may have forked
        os.write(pipe, b"%d" % code)
    os._exit(code)


class _Signals:
    """What the waiting process does with signals: they are for the child, which does the work.

    At a terminal, Ctrl-C reaches the child by itself.
    """

    def __init__(self) -> None:
        self.child = 0
        self.fatal = 0
        self._before: dict[int, Any] = {}
        self._arrived: list[int] = []

    def __enter__(self) -> _Signals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def repeat(self, process: int) -> None:
        """Send what arrived while there was no child yet."""
        for number in self._arrived:
            os.kill(process, number)

    def _handle(self, number: int, frame: object = None) -> None:
        if number != signal.SIGINT:
            self.fatal = number
        elif _at_terminal():
            return
        if self.child:
            os.kill(self.child, number)
        else:
            self._arrived.append(number)


def _at_terminal() -> bool:
    """Whether what is typed at a terminal reaches this process, and so its child."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
