"""Run the command line at a terminal that a test types at."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

from tests.helpers.commandline import ROOT, Answer

COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PROMPT = "]? "
SILENCE_S = 60


def at_terminal(
    directory: Path,
    *arguments: str,
    answers: str,
    colour: bool = False,
    program: tuple[str, ...] = ("-m", "fsdp_migrate"),
) -> Answer:
    """What the command says when it is answered with one letter of ``answers`` a question.

    ``^`` types Ctrl-C, ``.`` ends the input. ``program`` is what Python runs, when not the command.

    Raises:
        AssertionError: it says nothing for a minute, as when it asks for what nobody answers.
    """
    ours, theirs = pty.openpty()
    env = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "200"}
    env.pop("NO_COLOR", None)
    if not colour:
        env["NO_COLOR"] = "1"
    with subprocess.Popen(
        [sys.executable, *program, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=directory,
        env=env,
        start_new_session=True,
        preexec_fn=_take_terminal,  # noqa: PLW1509  # Ctrl-C reaches who has the terminal
    ) as process:
        os.close(theirs)
        said, waiting = "", list(answers)
        while True:
            if not select.select([ours], [], [], SILENCE_S)[0]:
                process.kill()
                raise AssertionError(f"it waits, with {waiting} to answer:\n{said}")
            try:
                got = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not got:
                break
            said += got.decode()
            if COLOUR.sub("", said).endswith(PROMPT) and waiting:
                key = waiting.pop(0)
                typed = {"^": "\x03", ".": "\x04"}.get(key, f"{key}\n")
                os.write(ours, typed.encode())
        code = process.wait(timeout=60)
    os.close(ours)
    text = said.replace("\r\n", "\n")
    assert not waiting, f"answers that nobody asked for: {waiting}\n{text}"
    return Answer(code, text, "")


def _take_terminal() -> None:
    import fcntl
    import termios

    heed_interrupts()

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def heed_interrupts() -> None:
    """In a new process: as a shell at a terminal starts it, wherever the tests themselves run.

    What a script starts in the background ignores SIGINT, and so do the processes under it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
