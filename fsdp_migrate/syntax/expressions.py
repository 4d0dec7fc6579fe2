"""Small questions about one expression: how its name ends, what a call is given."""

from __future__ import annotations

import ast

from fsdp_migrate.syntax.trees import walk


def last_name(node: ast.AST) -> str:
    """``AdamW`` of ``torch.optim.AdamW``; an empty text of what is no name."""
    if type(node) is ast.Name:  # no isinstance: little is asked more often
        return node.id
    return node.attr if type(node) is ast.Attribute else ""


def names_in(node: ast.AST) -> set[str]:
    """``{"i", "p"}`` of ``(i, p)``."""
    return {each.id for each in walk(node) if isinstance(each, ast.Name)}


def given_arguments(call: ast.Call) -> list[ast.expr]:
    """Everything that a call is given, by position or by name."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


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
    """The argument that a call is given first, or by this name."""
    if call.args and not isinstance(call.args[0], ast.Starred):
        return call.args[0]
    return next((k.value for k in call.keywords if k.arg == name), None)


def holder_of_attributes(node: ast.AST) -> ast.expr | None:
    """The object whose attributes a dictionary holds: ``m`` of ``m.__dict__``, ``vars(m)`` and
    ``m._modules``."""
    match node:
        case ast.Attribute(value=holder, attr="__dict__" | "_modules" | "_parameters"):
            return holder
        case ast.Call(func=ast.Name(id="vars"), args=[holder]):
            return holder
    return None
