"""Functions that only compute what they return: ``def is_old(): return VERSION < (2, 0)``."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from fsdp_migrate.syntax.trees import walk


def is_plain(body: Sequence[ast.stmt]) -> bool:
    """Whether a function does nothing on the way to its result that may change it."""
    return all(
        isinstance(s, (ast.Return, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Pass))
        or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
        or (
            isinstance(s, ast.Try)
            and not s.finalbody
            and is_plain([*s.body, *s.orelse])
            and all(h.body and isinstance(h.body[-1], ast.Raise) for h in s.handlers)
        )
        or (isinstance(s, ast.If) and is_plain([*s.body, *s.orelse]))
        for s in body
    )


def returned_values(body: Sequence[ast.stmt]) -> list[ast.expr] | None:
    """What a plain function gives; None when it may end without."""
    if not body or not isinstance(body[-1], ast.Return):
        return None
    returns = [n for s in body for n in walk(s) if isinstance(n, ast.Return)]
    values = [r.value for r in returns if r.value is not None]
    return values if len(values) == len(returns) else None
