"""Conditions that let one rank alone to a place."""

from __future__ import annotations

import ast
import re

from fsdp_migrate.families.checkpoints import ranks
from fsdp_migrate.syntax.expressions import last_name

ONE = re.compile(r"(main|master)(_process|_rank)?$|rank_?(zero|0)$|(global|process)_zero$", re.I)


def is_of_one(guard: ranks.Guard) -> bool:
    """Whether one rank alone comes past a condition."""
    if guard.exits:
        return True
    if guard.otherwise:
        return False
    parts = guard.test.values if isinstance(guard.test, ast.BoolOp) else [guard.test]
    return any(map(_asks_for_one, parts))


def _asks_for_one(test: ast.expr) -> bool:
    """``rank == 0``, ``is_main_process``."""
    match test:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=0)]):
            return ranks.mentions_rank(left)
        case ast.Call(func=function, args=[]):
            return ONE.search(last_name(function)) is not None
    return ONE.search(last_name(test)) is not None
