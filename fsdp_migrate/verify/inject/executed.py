"""Write down which lines of the files that the migration changed were executed.

Every line is written when it is executed for the first time, by whichever process does it: a worker
of a data loader counts as well, and what ends a process loses nothing. Python 3.12 tells of each
line once, at no cost afterwards; earlier versions ask a function at every call, and do not see the
threads that autograd makes on a GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from fsdp_migrate.verify.inject.config import WATCHED


def write_down(folder: Path, tree: str) -> None:
    """Begin, if ``folder`` holds a list of files to watch, as paths below ``tree``."""
    listed = folder / WATCHED
    if not listed.exists():
        return
    names = json.loads(listed.read_text(encoding="utf-8"))
    lines = _Lines(folder / f"executed-{os.getpid()}.txt", tree, names)
    if sys.version_info >= (3, 12):
        _monitor(lines)
    else:
        _trace(lines)


class _Lines:
    """The lines that were seen, each written to ``path`` once."""

    def __init__(self, path: Path, tree: str, names: list[str]) -> None:
        self.path = path
        self._files = {os.path.realpath(os.path.join(tree, name)): name for name in names}
        self._known: dict[str, str | None] = {}
        self._unseen: dict[tuple[str, CodeType], set[int]] = {}

    def unseen(self, code: CodeType) -> set[int]:
        """The lines of ``code`` that were not executed yet; none of a file that is not watched."""
        given = code.co_filename
        if given not in self._known:
            self._known[given] = self._files.get(os.path.realpath(given))
        if self._known[given] is None:
            return set()
        key = (given, code)  # the code of copied files is equal
        if key not in self._unseen:
            self._unseen[key] = {line for _, _, line in code.co_lines() if line}
        return self._unseen[key]

    def seen(self, code: CodeType, line: int) -> None:
        """``line`` is executed. Nothing that goes wrong here may reach the program."""
        unseen = self.unseen(code)
        if line not in unseen:
            return
        unseen.discard(line)
        with contextlib.suppress(OSError):
            file = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
            try:
                os.write(file, f"{line} {self._known[code.co_filename]}\n".encode())
            finally:
                os.close(file)


def _trace(lines: _Lines) -> None:
    def called(frame: FrameType, event: str, argument: Any) -> Any:
        del event, argument
        return executed if lines.unseen(frame.f_code) else None

    def executed(frame: FrameType, event: str, argument: Any) -> Any:
        del argument
        if event == "line":
            lines.seen(frame.f_code, frame.f_lineno)
        return executed

    threading.settrace(called)
    sys.settrace(called)


def _monitor(lines: _Lines) -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    events = monitoring.events
    tool = next((n for n in (4, 3, 5, 2) if monitoring.get_tool(n) is None), None)
    if tool is None:
        return
    monitoring.use_tool_id(tool, "fsdp-migrate")

    def called(code: CodeType, offset: int) -> Any:
        del offset
        if lines.unseen(code):
            monitoring.set_local_events(tool, code, events.LINE)
        return monitoring.DISABLE

    def executed(code: CodeType, line: int) -> Any:
        lines.seen(code, line)
        return monitoring.DISABLE

    monitoring.register_callback(tool, events.PY_START, called)
    monitoring.register_callback(tool, events.LINE, executed)
    monitoring.set_events(tool, events.PY_START)
