"""Gradients that a program reads while they wait for their reduction.

FSDP1 kept what ``no_sync`` accumulated in ``p.grad``, unsharded. FSDP2 keeps it apart until the
next reduction: ``p.grad`` is None until then, or has what was there before, and what reads, scales
or clips it passes over it without an error.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import walk

CLIPS = frozenset({"clip_grad_norm_", "clip_grad_value_"})
LEAVING = (ast.Continue, ast.Break, ast.Return, ast.Raise)

Blocks = Sequence[tuple[list[ast.stmt], int]]
"""The statement lists around a ``no_sync``, with where each goes on behind it."""


def are_read(site: Site, blocks: Blocks, study: Study) -> bool:
    """Whether gradients are read in the block of a ``no_sync`` behind a backward, or behind that
    block before the next backward or step."""
    reader = _Reader(study)
    around = site.statement
    body = around.body if isinstance(around, (ast.With, ast.AsyncWith)) else []
    if reader.reads_in(body, site.module):
        return True
    for block, first in blocks:
        for each in block[first:]:
            if called_in(each) & {"step", "backward"} or _may_leave(each):
                return False
            if reader.reads(each, site.module):
                return True
    return False


def called_in(statement: ast.AST) -> set[str]:
    """The names of the methods and functions that a statement calls."""
    return {last_name(n.func) for n in walk(statement) if isinstance(n, ast.Call)}


def _may_leave(statement: ast.stmt) -> bool:
    """``if not is_last: continue``: what follows runs for the last micro-batch."""
    return isinstance(statement, ast.If) and isinstance(statement.body[-1], LEAVING)


class _Reader:
    """Looks for what reads gradients, also in the functions of the project that are called."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.seen: set[ast.AST] = set()  # functions that read none

    def reads_in(self, body: Sequence[ast.stmt], module: Module) -> bool:
        """Whether something behind a backward reads gradients."""
        is_behind = False
        for statement in body:
            if is_behind and self.reads(statement, module):
                return True
            is_behind |= "backward" in called_in(statement)
            inner = [*getattr(statement, "body", ()), *getattr(statement, "orelse", ())]
            if inner and self.reads_in(inner, module):
                return True
        return False

    def reads(self, node: ast.AST, module: Module) -> bool:
        """Whether code reads a gradient or clips."""
        for part in walk(node):
            match part:
                case ast.Attribute(attr="grad", ctx=ast.Load()):
                    return True
                case ast.Call(func=function):
                    if last_name(function) in CLIPS or self._is_called(function, module):
                        return True
        return False

    def _is_called(self, function: ast.expr, module: Module) -> bool:
        for value in self.study.values(function, module):
            if isinstance(value, Function) and value.node not in self.seen:
                self.seen.add(value.node)
                if self.reads(value.node, value.module):
                    return True
        return False
