"""Whether a setting may get another value between two places of a program."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.syntax.name_table import NameTable
from fsdp_migrate.syntax.scopes import Scope
from fsdp_migrate.syntax.trees import FUNCTIONS, position, walk

WRITERS = frozenset({"setattr", "__setattr__", "update", "setdefault", "set", "merge", "override"})
LAST = re.compile(r"\.(\w+)(?!\w*\()")  # of a setting's name: what is assigned
# What an assignment and a call share if it comes after the call: it stores what that gives, or
# both are in a loop.
REPEATED = (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.Call, ast.For, ast.While)

Place = tuple[ast.AST, Module]


class SettingChanges:
    """Answers for one project, through its tracer."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self._stored: dict[str, list[tuple[ast.expr, Module]]] = {}

    def may_come(self, setting: str, made: Place, used: Place) -> bool:
        """Whether a setting may be given another value after the model was made: below what leads
        there, in the same function, or in the function that uses it."""
        path = LAST.findall(setting.rpartition(":")[2])
        if not path:
            return False  # a name that is bound once
        leading = self._leading_to(*made)
        here = used[1].table.scope_of(used[0]).function()
        for store, module in self.stores(path[-1]):
            table = module.table
            scope = table.scope_of(store).function() or table.module
            calls = leading.get(scope, [])
            if any(_may_follow(store, call, table) for call in calls):
                return True
            if not calls and scope is here:
                return True
        return False

    def stores(self, last: str) -> list[tuple[ast.expr, Module]]:
        """Where the project gives an attribute or an item of that name a value, on whatever
        object."""
        if last not in self._stored:
            modules = self.tracer.project.modules
            self._stored[last] = [(store, m) for m in modules for store in _stores(last, m)]
        return self._stored[last]

    def _leading_to(self, node: ast.AST, module: Module) -> dict[Scope, list[ast.AST]]:
        """What runs so that ``node`` runs: itself, and the calls that lead there, by function."""
        found: dict[Scope, list[ast.AST]] = {}
        waiting: list[Place] = [(node, module)]
        for each, where in waiting:
            scope = where.table.scope_of(each).function() or where.table.module
            new = scope not in found
            found.setdefault(scope, []).append(each)
            if new and isinstance(scope.node, FUNCTIONS):
                waiting += [(c.call, c.module) for c in self.tracer.callers(scope.node, where)]
        return found


def _stores(last: str, module: Module) -> Iterator[ast.expr]:
    """Where an attribute or an item of that name is given a value, on whatever object."""
    if module.mentions(last):
        table = module.table
        yield from (a for a in table.stored_attributes if a.attr == last)
        stored = (item for item in table.subscripts if not isinstance(item.ctx, ast.Load))
        yield from (s for s in stored if getattr(s.slice, "value", None) == last)
        yield from (c for c in table.calls_by_name.of(WRITERS) if last in _words(c))


def _words(call: ast.Call) -> Iterator[object]:
    """The keywords and the literals that stand in a call."""
    for node in walk(call):
        if isinstance(node, ast.keyword):
            yield node.arg
        elif isinstance(node, ast.Constant):
            yield node.value


def _may_follow(store: ast.expr, call: ast.AST, table: NameTable) -> bool:
    """Whether an assignment may run after a call in the same function, as that of its result."""
    around = {store, *table.ancestors(store)} & set(table.ancestors(call))
    return position(store) > position(call) or any(isinstance(n, REPEATED) for n in around)
