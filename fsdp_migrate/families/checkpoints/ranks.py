"""Code that only some ranks run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.trees import FUNCTIONS, block_of, walk

RANK_WORDS = (
    "rank",
    "is_main",
    "is_master",
    "is_zero",
    "main_process",
    "master_process",
    "local_main",
    "global_zero",
    "process_zero",
)
OTHER_RANKS = ("lora", "ranking")  # words for ranks that are no processes
BLOCKS = ("body", "orelse", "finalbody")
Order = type[ast.cmpop]
MIRRORED: dict[Order, Order] = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
NEGATED: dict[Order, Order] = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt}
BELOW: dict[Order, int] = {
    ast.Lt: 1,
    ast.LtE: 0,
}  # the bound up to which it is the first rank alone


@dataclass(frozen=True, eq=False)
class Guard:
    """Something that keeps a part of the ranks from a place in the code.

    ``statement`` is the condition's, and for an early return stands before the place, not around
    it. ``exits``: it is an early return.
    """

    statement: ast.stmt
    test: ast.expr
    exits: bool = False
    otherwise: bool = False  # the place is in the ``else``

    def __str__(self) -> str:
        return ast.unparse(self.test)

    @property
    def where(self) -> str:
        """Where the place is, as it is said."""
        said = "behind an exit" if self.exits else "in the else" if self.otherwise else ""
        return f"{said} of '{self}'" if said else f"under '{self}'"


def guard(node: ast.AST, module: Module) -> str | None:
    """Where the innermost condition on the rank has ``node`` run within its function."""
    return next((found.where for found in guards(node, module)), None)


def is_for_one(node: ast.AST, module: Module) -> bool:
    """Whether a condition has ``node`` run on one rank alone, within its function."""
    return any(not is_for_several(found) for found in guards(node, module))


def guards(node: ast.AST, module: Module) -> Iterator[Guard]:
    """The conditions on the rank under which ``node`` runs in its function, the innermost first."""
    table = module.table
    child = node
    for parent in table.ancestors(node):
        if isinstance(child, ast.stmt):
            for earlier in _before(child, parent):
                if _returns(earlier):
                    leaving = of_kind(earlier, ast.If)
                    yield Guard(leaving, leaving.test, exits=True)
        if isinstance(parent, FUNCTIONS):
            return
        if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test:
            elsewhere = child is parent.orelse or child in _list(parent.orelse)
            if _keeps_apart(parent.test, holds=not elsewhere):
                yield Guard(table.statement(parent), parent.test, otherwise=elsewhere)
        elif isinstance(parent, ast.BoolOp) and child in parent.values:
            asked = parent.values[: parent.values.index(child)]
            holds = isinstance(parent.op, ast.And)
            if any(_keeps_apart(each, holds=holds) for each in asked):
                yield Guard(table.statement(parent), parent)
        child = parent


def _list(value: object) -> list[ast.AST]:
    return value if isinstance(value, list) else []


def _keeps_apart(test: ast.expr, *, holds: bool) -> bool:
    """Whether some ranks do not get to a place where a condition is true (or false).

    ``rank == 0 or sharded`` does not: it is how code says that every rank is wanted.
    """
    if isinstance(test, ast.BoolOp):
        every = isinstance(test.op, ast.And) is not holds
        kept = [_keeps_apart(value, holds=holds) for value in test.values]
        return all(kept) if every else any(kept)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _keeps_apart(test.operand, holds=not holds)
    return mentions_rank(test)


def is_for_several(found: Guard) -> bool:
    """Whether more than one rank may get to the place behind a condition: ``rank < shards``.

    ``rank < 1`` and ``rank <= 0`` are for the first alone.
    """
    test = found.test
    if isinstance(test, ast.BoolOp):
        parts = [part for part in test.values if mentions_rank(part)]
        wide = isinstance(test.op, ast.And) is not found.otherwise
        return wide and all(_is_wide(part, holds=not found.otherwise) for part in parts)
    return not found.exits and _is_wide(test, holds=not found.otherwise)


def _is_wide(test: ast.expr, *, holds: bool) -> bool:
    """Whether a comparison of the rank with a bound is true (or false) on several ranks."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_wide(test.operand, holds=not holds)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    left, right, operator = test.left, test.comparators[0], type(test.ops[0])
    if mentions_rank(right):
        left, right, operator = right, left, MIRRORED.get(operator, operator)
    if not mentions_rank(left) or mentions_rank(right):
        return False
    if not holds:
        operator = NEGATED.get(operator, operator)
    bound = right.value if isinstance(right, ast.Constant) else None
    return operator in BELOW and (not isinstance(bound, int) or bound > BELOW[operator])


def decorator(function: ast.AST) -> tuple[ast.expr, str] | None:
    """The decorator that may let only some ranks run a function, and how it is written."""
    for each in getattr(function, "decorator_list", ()):
        if mentions_rank(each):
            return each, f"@{ast.unparse(each)}"
    return None


def _before(child: ast.stmt, parent: ast.AST) -> list[ast.stmt]:
    """The statements before ``child`` in its block, the nearest first."""
    block = block_of(parent, child)
    return block[: block.index(child)][::-1]


def _returns(statement: ast.stmt) -> bool:
    """``if rank != 0: return``: the ranks that do not return are alone from there on."""
    if not isinstance(statement, ast.If) or not mentions_rank(statement.test):
        return False
    leaves = isinstance(statement.body[-1], (ast.Return, ast.Continue))
    return leaves and not statement.orelse and _spares_one(statement.test)


def _spares_one(test: ast.expr) -> bool:
    """Whether a condition on the rank is true on every rank but one."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return any(map(_spares_one, test.values))
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = test.operand
        return mentions_rank(inner) and not isinstance(inner, ast.BoolOp)
    if isinstance(test, ast.Compare):
        listed = [getattr(c, "elts", [c]) for c in test.comparators]
        zero = any(isinstance(c, ast.Constant) and c.value == 0 for cs in listed for c in cs)
        apart = isinstance(test.ops[0], (ast.NotEq, ast.Gt, ast.IsNot, ast.NotIn))
        return mentions_rank(test) and zero and apart
    return False


def mentions_rank(test: ast.expr) -> bool:
    """Whether a condition differs between ranks, judged by the names in it."""
    for node in walk(test):
        name = last_name(node).lower()
        if any(word in name for word in OTHER_RANKS):
            continue
        if any(word in name for word in RANK_WORDS):
            return True
    return False
