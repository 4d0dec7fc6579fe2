"""The conditions under which a node runs, as the branches around it and before it say."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.syntax.name_table import NameTable
from fsdp_migrate.syntax.trees import block_of

LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def around(
    node: ast.AST, table: NameTable, function: ast.AST | None = None
) -> Iterator[tuple[ast.expr, bool]]:
    """Each condition, and whether it holds where ``node`` runs, the innermost first.

    Args:
        function: where to stop; without it, functions are looked through: nothing inside one runs
            unless its definition did.
    """
    child = node
    for parent in table.ancestors(node):
        match parent:
            case ast.If() | ast.IfExp() if child is not parent.test:
                body = parent.body if isinstance(parent.body, list) else [parent.body]
                yield parent.test, child in body
            case ast.BoolOp(op=op, values=values):
                for earlier in values:
                    if earlier is child:
                        break
                    yield earlier, isinstance(op, ast.And)
        if isinstance(child, ast.stmt):
            block = block_of(parent, child)
            for statement in block[: block.index(child)] if child in block else ():
                yield from _passed(statement)
        if parent is function:
            return
        child = parent


def _passed(statement: ast.stmt) -> Iterator[tuple[ast.expr, bool]]:
    """What is known behind a statement: of a branch that does not come back, an assertion."""
    match statement:
        case ast.If(test=test, body=body, orelse=orelse):
            way: list[ast.stmt] = []  # on which what follows was reached
            if leaves(body):
                yield test, False
                way = orelse
            elif leaves(orelse):
                yield test, True
                way = body
            for each in way:
                yield from _passed(each)
        case ast.Assert(test=test):
            yield test, True


def leaves(body: Sequence[ast.stmt]) -> bool:
    """Whether what follows a block in its function, or in its loop, is not reached through it."""
    match body[-1:]:
        case [ast.With(items=items, body=inner) | ast.AsyncWith(items=items, body=inner)]:
            swallows = any("suppress" in ast.unparse(each.context_expr) for each in items)
            return leaves(inner) and not swallows
        case [ast.If(body=inner, orelse=other)]:
            return leaves(inner) and leaves(other)
        case [last]:
            return isinstance(last, LEAVING)
    return False
