"""Write down which changed statements of the migrated program were executed.

Each is written when it is executed for the first time, by whichever process does it: a worker of a
data loader counts as well, and what ends a process loses nothing. Python 3.12 tells of each line
once, at no cost afterwards. For earlier versions a changed file is compiled with a call in front of
each changed statement; only a script that the interpreter was started on is out of reach of that,
and is traced, which slows everything down, until its changed statements have run.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import json
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from fsdp_migrate.verify.inject import compiling
from fsdp_migrate.verify.inject.config import WATCHED

_RAN = "__fsdp_migrate_ran__"
"""The name among the builtins of what is called in front of a changed statement."""


def write_down(folder: Path, tree: str) -> None:
    """Begin, if ``folder`` holds a list of what to watch: of each file, as a path below ``tree``,
    the first and last lines of its changed statements."""
    listed = folder / WATCHED
    if not listed.exists():
        return
    watched = json.loads(listed.read_text(encoding="utf-8"))
    lines = _Lines(folder / f"executed-{os.getpid()}.txt", tree, watched)
    if sys.version_info >= (3, 12):
        _monitor(lines)
        return
    _Marks(lines).install()
    script = lines.name(sys.argv[0]) if sys.argv else None
    if script is not None:
        _trace(lines, script)


class _Lines:
    """The changed statements that did not run yet. Each is written to ``path`` when it does, and
    line 0 of a file when it is loaded."""

    def __init__(self, path: Path, tree: str, waiting: dict[str, list[tuple[int, int]]]) -> None:
        self.path = path
        self.waiting = waiting
        self._files = {os.path.realpath(os.path.join(tree, name)): name for name in waiting}
        self._known: dict[str, str | None] = {}
        self._unseen: dict[tuple[str, CodeType], set[int]] = {}
        self._loaded: set[str] = set()

    def name(self, file: str) -> str | None:
        """The name of a file that is watched."""
        if file not in self._known:
            self._known[file] = self._files.get(os.path.realpath(file))
        return self._known[file]

    def is_loaded(self, name: str) -> None:
        """The file is about to be executed."""
        if name not in self._loaded:
            self._loaded.add(name)
            self.write(name, 0)

    def unseen(self, code: CodeType) -> set[int]:
        """The lines of changed statements in ``code`` that were not executed yet."""
        name = self.name(code.co_filename)
        if name is None:
            return set()
        key = (name, code)  # the code of copied files is equal
        if key not in self._unseen:
            self.is_loaded(name)
            lines = {line for _, _, line in code.co_lines() if line}
            waiting = [range(first, last + 1) for first, last in self.waiting[name]]
            self._unseen[key] = {line for line in lines if any(line in each for each in waiting)}
        return self._unseen[key]

    def seen(self, code: CodeType, line: int) -> None:
        """``line`` is executed."""
        unseen, name = self.unseen(code), self.name(code.co_filename)
        if name is not None and line in unseen:
            unseen.discard(line)
            self.ran(name, line)

    def ran(self, name: str, line: int) -> None:
        """The statement is executed to which ``line`` belongs."""
        self.waiting[name] = [s for s in self.waiting[name] if not s[0] <= line <= s[1]]
        self.write(name, line)

    def write(self, name: str, line: int) -> None:
        """Nothing that goes wrong here may reach the program."""
        with contextlib.suppress(OSError):
            file = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
            try:
                os.write(file, f"{line} {name}\n".encode())
            finally:
                os.close(file)


# --- before Python 3.12 --------------------------------------------------------------------------


class _Marks:
    """Has changed files compiled with a call in front of each changed statement."""

    def __init__(self, lines: _Lines) -> None:
        self.lines = lines
        self._places: list[tuple[str, int]] = []
        self._waiting: set[int] = set()

    def install(self) -> None:
        """Reach files however they are imported or run."""
        waiting = self._waiting

        def ran(number: int) -> None:
            if number in waiting:
                waiting.discard(number)
                self.lines.ran(*self._places[number])

        # torch.compile calls it while it traces, and leaves it out of what it makes.
        ran._dynamo_marked_constant = True  # type: ignore[attr-defined]
        setattr(builtins, _RAN, ran)
        compiling.install(lambda path: self.lines.name(path) is not None, self.marked)

    def marked(self, tree: ast.AST, path: str) -> ast.AST:
        """The tree of a file that is watched, with the calls."""
        name = self.lines.name(path)
        assert name is not None
        self.lines.is_loaded(name)
        firsts = {first for first, _ in self.lines.waiting[name]}
        for node in list(ast.walk(tree)):
            for part in ("body", "orelse", "finalbody"):
                statements = getattr(node, part, None)
                if isinstance(statements, list):
                    marked = [e for s in statements for e in (*self._mark(name, s, firsts), s)]
                    setattr(node, part, marked)
        return tree

    def _mark(self, name: str, statement: ast.stmt, firsts: set[int]) -> list[ast.stmt]:
        decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(each.lineno for each in decorators)])
        documents = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if first not in firsts or documents:
            return []
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            self.lines.ran(name, first)  # nothing may stand in front of it
            return []
        number = len(self._places)
        self._places.append((name, first))
        self._waiting.add(number)
        call = ast.Expr(ast.Call(ast.Name(_RAN, ast.Load()), [ast.Constant(number)], []))
        for node in ast.walk(call):
            ast.copy_location(node, statement)
        return [call]


def _trace(lines: _Lines, script: str) -> None:
    """Ask at every line of a script, until all of its changed statements have run. While it imports
    something, which may be torch, nothing is traced."""
    importing = builtins.__import__

    def called(frame: FrameType, event: str, argument: Any) -> Any:
        del event, argument
        if not lines.waiting[script]:
            no_more()
            return None
        watched = lines.name(frame.f_code.co_filename) == script
        return executed if watched and lines.unseen(frame.f_code) else None

    def executed(frame: FrameType, event: str, argument: Any) -> Any:
        del argument
        if event == "line":
            lines.seen(frame.f_code, frame.f_lineno)
        return executed

    def untraced(*args: Any, **options: Any) -> Any:
        ours = sys.gettrace() is called
        if ours:
            sys.settrace(None)
        try:
            return importing(*args, **options)
        finally:
            if ours:
                sys.settrace(called)

    def no_more() -> None:
        # What others have set is left alone.
        if sys.gettrace() is called:
            sys.settrace(None)
        if threading.gettrace() is called:
            threading.settrace(None)
        if builtins.__import__ is untraced:
            builtins.__import__ = importing

    threading.settrace(called)
    sys.settrace(called)
    builtins.__import__ = untraced


# --- since Python 3.12 ---------------------------------------------------------------------------


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
