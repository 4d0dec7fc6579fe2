"""What the flow of one scope tells: which definitions reach each use of a path.

A *path* is a name or what is reached through one: ``self.model``, ``cfg.fsdp.strategy``,
``kwargs["mesh"]``. :mod:`fsdp_migrate.analysis.reaching_definitions` computes a flow.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from fsdp_migrate.syntax.scopes import Kind


@dataclass(eq=False)
class Definition:
    """One thing that may give a path its value; fields as in ``names.Binding``."""

    path: str
    kind: Kind
    node: ast.AST
    value: ast.expr | None = None
    unpack: tuple[int, ...] = ()


@dataclass(eq=False)
class Test(Definition):
    """That ``node``, a call of ``isinstance``, holds for a path, or does not.

    ``crossed``: the path's root has since been handed to calls, which may have assigned the path.
    """

    holds: bool = True
    crossed: bool = False


ELSEWHERE = Definition("", Kind.OTHER, ast.Pass())
"""Reaches a dotted path that some branch did not assign: whatever it held before this scope."""
Environment = dict[str, frozenset[Definition]]
"""By path, what may have defined it; by ``TESTED`` and a path, the tests that it stands under."""

TESTED = "?"
Tests = frozenset[Test]


def access_path(node: ast.expr) -> str | None:
    """``self.model`` and ``kw["mesh"]`` as strings; None if the expression is not a path."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = access_path(node.value)
        return None if base is None else f"{base}.{node.attr}"
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        base = access_path(node.value)
        return None if base is None else f"{base}[{node.slice.value!r}]"
    return None


@dataclass(eq=False)
class Flow:
    """The result for one scope."""

    reaching: dict[ast.AST, frozenset[Definition]] = field(default_factory=dict)
    final: Environment = field(default_factory=dict)
    definitions: list[Definition] = field(default_factory=list)  # in source order
    order: dict[ast.AST, int] = field(default_factory=dict)  # statement -> first visit
    tests: dict[ast.AST, Tests] = field(default_factory=dict)  # of a use of a path
    deleted: dict[ast.expr, frozenset[Definition]] = field(default_factory=dict)  # by ``del``
    # What names that several bindings give different values may be, at calls and definitions.
    at: dict[tuple[ast.AST, str], frozenset[Definition]] = field(default_factory=dict)
