"""What is written between the brackets of a call."""

from __future__ import annotations

import ast


def bind_arguments(call: ast.Call, names: tuple[str, ...]) -> dict[str, ast.expr] | None:
    """Bind a call's arguments to ``names`` by position and keyword; None when it unpacks any."""
    if any(isinstance(a, ast.Starred) for a in call.args) or len(call.args) > len(names):
        return None
    bound = dict(zip(names, call.args, strict=False))
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg not in names:
            return None
        bound[keyword.arg] = keyword.value
    return bound


def first_argument(call: ast.Call, name: str = "module") -> ast.expr | None:
    if call.args and not isinstance(call.args[0], ast.Starred):
        return call.args[0]
    return next((k.value for k in call.keywords if k.arg == name), None)
