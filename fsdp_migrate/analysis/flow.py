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
    """One thing that may give a path its value; its fields are those of a ``Binding``."""

    path: str
    kind: Kind
    node: ast.AST
    value: ast.expr | None = None
    unpack: tuple[int, ...] = ()


@dataclass(eq=False)
class Test(Definition):
    """What is known by ``node``, a call of ``isinstance`` or of a function that may ask it, or a
    pattern with classes: that it holds for a path, or does not.

    ``crossed``: the path's root has since been handed to calls, which may have assigned the path.
    """

    holds: bool = True
    crossed: bool = False


ELSEWHERE = Definition("", Kind.OTHER, ast.Pass())
"""Stands for the value from before this scope, where some branch did not assign a dotted path."""
Environment = dict[str, frozenset[Definition]]
"""By path, what may have defined it; by ``TESTED`` and a path, the tests that it stands under."""

TESTED = "?"
Tests = frozenset[Test]


def access_path(node: ast.expr) -> str | None:
    """``self.model`` and ``kw["mesh"]`` as strings; None if the expression is not a path."""
    rest = ""
    while type(node) is not ast.Name:  # no isinstance, nor calls: little is asked more often
        if type(node) is ast.Attribute:
            rest = f".{node.attr}{rest}"
        elif type(node) is ast.Subscript and type(node.slice) is ast.Constant:
            rest = f"[{node.slice.value!r}]{rest}"
        else:
            return None
        node = node.value
    return f"{node.id}{rest}" if rest else node.id


@dataclass(eq=False)
class Flow:
    """The result for one scope."""

    reaching: dict[ast.AST, frozenset[Definition]] = field(default_factory=dict)
    final: Environment = field(default_factory=dict)
    definitions: list[Definition] = field(default_factory=list)  # in source order
    order: dict[ast.AST, int] = field(default_factory=dict)  # statement -> first visit
    tests: dict[ast.AST, Tests] = field(default_factory=dict)  # of a use of a path
    deleted: dict[ast.expr, frozenset[Definition]] = field(default_factory=dict)  # by ``del``
    # At calls and definitions: what names may be that several bindings give different values.
    at: dict[tuple[ast.AST, str], frozenset[Definition]] = field(default_factory=dict)
