"""``rewrite --format``: the project's own formatter, on the files that a run changes.

It is given the new contents and gives back text; the run writes, so that ``undo`` and patches know
it. What it does to the code is checked: only layout may differ.
"""

from __future__ import annotations

import ast
import inspect
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from fsdp_migrate import shown
from fsdp_migrate.cli import console
from fsdp_migrate.cli.session import Run

COMMANDS = {
    "ruff": ("format", "--no-cache", "--force-exclude", "--stdin-filename", "{path}", "-"),
    "black": ("--quiet", "--stdin-filename", "{path}", "-"),
}
SECONDS = 60


class FormatError(Exception):
    """The formatter gave nothing that can be used. The message is one line."""


def format_changes(run: Run) -> None:
    """Format the Python files of a run's changes, or say why they are not formatted."""
    paths = [path for path in sorted(run.result.changes) if path.suffix in {".py", ".pyi"}]
    name = run.config.formatter
    if not paths:
        return
    if not name:
        console.note("note: not formatted: the project is set up for neither ruff nor black")
        return
    program = find_program(name)
    if program is None:
        console.note(f"note: not formatted: {name} is not installed")
        return
    for path in paths:
        command = [program, *(word.format(path=path) for word in COMMANDS[name])]
        try:
            new = formatted(command, run.result.changes[path], run.config.root)
        except FormatError as error:
            where = shown.path(run.found.display(path))
            console.note(f"note: {where} is not formatted: {name}: {shown.line(str(error))}")
            continue
        run.result.changes[path] = new


def find_program(name: str) -> str | None:
    """Where a program is, in the absolute directories of PATH: no other is the user's word."""
    listed = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return shutil.which(name, path=os.pathsep.join(filter(os.path.isabs, listed)))


def formatted(command: Sequence[str], data: bytes, directory: Path) -> bytes:
    """What a formatter makes of a file's contents.

    Raises:
        FormatError: it failed, or changed more than the layout.
    """
    try:
        answer = subprocess.run(
            command, cwd=directory, input=data, capture_output=True, check=False, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        raise FormatError(f"gave no answer in {SECONDS} seconds") from None
    except OSError as error:
        raise FormatError(error.strerror or str(error)) from None
    if answer.returncode:
        said = answer.stderr.decode(errors="replace").strip().splitlines()
        raise FormatError(said[0] if said else f"ended with {answer.returncode}")
    try:
        same = _code(answer.stdout) == _code(data)
    except (SyntaxError, ValueError, RecursionError):
        same = False
    if not same:
        raise FormatError("changed more than the layout")
    return answer.stdout


def _code(data: bytes) -> str:
    """A file's code without its layout. Formatters indent docstrings anew."""
    tree = ast.parse(data)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node, clean=False)
            if text is not None:
                lines = inspect.cleandoc(text).splitlines()
                node.body[0] = ast.Expr(ast.Constant("\n".join(map(str.rstrip, lines)).strip()))
        elif isinstance(node, ast.Delete):  # del (a, b) and del a, b
            targets = node.targets
            if len(targets) == 1 and isinstance(targets[0], ast.Tuple):
                node.targets = targets[0].elts
    return ast.dump(tree)
