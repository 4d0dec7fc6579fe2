"""Have files of the program compiled otherwise than they are written, however they are imported."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

Change = Callable[[ast.AST, str], ast.AST]
"""The tree to compile in the place of that of a file."""

_changes: list[tuple[Callable[[str], bool], Change]] = []


def install(concerns: Callable[[str], bool], change: Change) -> None:
    """Compile every file that this ``concerns``, by its path, as ``change`` makes it."""
    _changes.append((concerns, change))
    if len(_changes) > 1:
        return
    to_code, stats = SourceFileLoader.source_to_code, SourceFileLoader.path_stats

    def source_to_code(loader: Any, data: Any, path: Any, **options: Any) -> Any:
        return to_code(loader, _changed(data, path), path, **options)

    def path_stats(loader: Any, path: str) -> Any:
        if any(concerns(path) for concerns, _ in _changes):
            raise OSError("neither read from compiled files nor kept as one")
        return stats(loader, path)

    def compile_script(source: Any, path: Any, *args: Any, **options: Any) -> Any:
        return compile(_changed(source, path), path, *args, **options)

    SourceFileLoader.source_to_code = source_to_code  # type: ignore[assignment,method-assign]
    SourceFileLoader.path_stats = path_stats  # type: ignore[assignment,method-assign]
    runpy.compile = compile_script  # type: ignore[attr-defined]


def compiled(source: bytes, path: str) -> CodeType:
    """The code of a script that our own launchers run."""
    code: CodeType = compile(_changed(source, path), path, "exec", dont_inherit=True)
    return code


def _changed(source: Any, path: Any) -> Any:
    if not isinstance(path, str):
        return source
    for concerns, change in _changes:
        if concerns(path):
            tree = source if isinstance(source, ast.AST) else ast.parse(source, path)
            source = change(tree, path)
    return source
