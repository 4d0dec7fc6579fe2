"""Nodes of which it is known what they are."""

from __future__ import annotations

import ast
from typing import TypeVar

Node = TypeVar("Node")


def of_kind(node: object, kind: type[Node]) -> Node:
    """``node``, of which whoever asks knows the kind.

    Raises:
        TypeError: it is of another.
    """
    if not isinstance(node, kind):
        raise TypeError(f"{type(node).__name__} where {kind.__name__} should stand")
    return node


def present(value: Node | None) -> Node:
    """``value``, of which whoever asks knows that it is there.

    Raises:
        TypeError: it is not.
    """
    if value is None:
        raise TypeError("nothing where something should stand")
    return value


def elements_of(node: object) -> list[ast.expr]:
    """What stands in a list, a tuple or a set that is written out."""
    if not isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        raise TypeError(f"{type(node).__name__} where elements should stand")
    return node.elts


def method_of(call: ast.Call) -> ast.Attribute:
    """What is called, of a call of a method: ``model.state_dict``."""
    return of_kind(call.func, ast.Attribute)
