"""Look at the values of expressions that the rewriter asks about, in a run of the original.

Each is compiled as a call that is given the value and gives it back. What is seen is told to
:data:`note`, which the recorder sets; what comes before it does is kept as far as it can be no
model yet.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsdp_migrate.verify.inject import compiling
from fsdp_migrate.verify.inject.config import ASKED

Span = tuple[int, int, int, int]
"""Line, column, last line and last column, as ``ast`` counts them."""

_SAW = "__fsdp_migrate_saw__"
"""The name among the builtins of what is called with a value."""

places: list[tuple[str, Span]] = []
"""What is looked at, by number."""

early: set[int] = set()
"""The numbers of places that were passed before :data:`note` was set."""

note: Callable[[int, Any], None] | None = None
is_compiling: Callable[[], bool] = lambda: False  # noqa: E731 - torch's own, once it is there


def saw(number: int, value: Any) -> Any:
    """``value``, which the place has now."""
    if is_compiling():  # torch.compile looks into this, and makes nothing of it
        return value
    if note is None:
        early.add(number)
    else:
        note(number, value)
    return value


def look(folder: Path, tree: str) -> None:
    """Begin, if ``folder`` holds a list of what is asked about: of each file, as a path below
    ``tree``, the spans of expressions."""
    listed = folder / ASKED
    if not listed.exists():
        return
    asked = json.loads(listed.read_text(encoding="utf-8"))
    files = {os.path.realpath(os.path.join(tree, name)): name for name in asked}
    setattr(builtins, _SAW, saw)

    def change(tree: ast.AST, path: str) -> ast.AST:
        name = files[os.path.realpath(path)]
        return _Wrapped(name, {tuple(span) for span in asked[name]}).visit(tree)  # type: ignore[no-any-return]

    compiling.install(lambda path: os.path.realpath(path) in files, change)


class _Wrapped(ast.NodeTransformer):
    """Puts the call around the expressions of a file that are asked about."""

    def __init__(self, name: str, spans: set[Any]) -> None:
        self.name, self.spans = name, spans

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.JoinedStr):
            return node  # before Python 3.12 what stands in them has no place
        result = self.generic_visit(node)
        reads = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        if not isinstance(node, ast.expr) or not reads:
            return result
        span = (node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)
        if span not in self.spans:
            return result
        self.spans.discard(span)  # parts that stand at the same place are no other expression
        places.append((self.name, span))
        function, number = ast.Name(_SAW, ast.Load()), ast.Constant(len(places) - 1)
        call = ast.Call(function, [number, node], [])
        for new in (function, number, call):
            ast.copy_location(new, node)
        return call
