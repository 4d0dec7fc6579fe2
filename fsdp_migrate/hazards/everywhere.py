"""Whether all ranks run a piece of code, as far as statements show."""

from __future__ import annotations

import ast
from collections.abc import Collection, Set

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.hazards.order import STRAIGHT, surely_precedes
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name, names_in
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.trees import FUNCTIONS, block_of, walk

LEAVING = (ast.Break, ast.Continue, ast.Return)
TOGETHER = frozenset({"backward", "barrier", "all_reduce"})  # what no rank does alone
# What may be asked in a test that has the same answer on every rank.
ASKED = frozenset({"isinstance", "hasattr", "DTensor", "__name__"})


def is_run_by_all(
    node: ast.expr,
    module: Module,
    study: Study,
    same: Collection[str] = (),
    seen: frozenset[ast.AST] = frozenset(),
) -> bool:
    """Whether every rank evaluates ``node`` if any does: nothing chooses, up to the top of a
    program or to what all of them do together. ``same`` are names that stand for the same
    everywhere."""
    table = module.table
    asked = ASKED.union(same)
    child: ast.AST = node
    for parent in table.ancestors(node):
        if isinstance(parent, ast.stmt):
            break
        if not _is_straight(parent, child, asked):
            return False
        child = parent
    statement: ast.stmt = table.statement(node)
    while True:
        around = table.parents[statement]
        block = block_of(around, statement)
        before = block[: block.index(statement)]
        if any(isinstance(each, LEAVING) for other in before for each in walk(other)):
            return False
        calls = [c for other in before for c in walk(other) if isinstance(c, ast.Call)]
        if any(last_name(c.func) in TOGETHER and surely_precedes(c, node, module) for c in calls):
            return True
        if isinstance(around, ast.Module):
            return True
        if isinstance(around, FUNCTIONS):
            if around in seen:
                return False
            callers = study.tracer.callers(around, module)
            further = seen | {around}
            return bool(callers) and all(
                is_run_by_all(c.call, c.module, study, seen=further) for c in callers
            )
        chosen = isinstance(around, ast.If) and names_in(around.test) <= asked
        if not (chosen or isinstance(around, STRAIGHT)):
            return False
        statement = of_kind(around, ast.stmt)


def _is_straight(parent: ast.AST, child: ast.AST, asked: Set[str]) -> bool:
    """Whether an expression is evaluated whenever the one around it is."""
    match parent:
        case ast.IfExp(test=test):
            return child is test or names_in(test) <= asked
        case ast.BoolOp(values=[first, *_]):
            return child is first
        case ast.Lambda():
            return False
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            return all(names_in(test) <= asked for each in parent.generators for test in each.ifs)
    return True
