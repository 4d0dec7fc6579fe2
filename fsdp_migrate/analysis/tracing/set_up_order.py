"""What runs before an assignment of ``__init__``, and cannot see what that assigns.

``self.load(path)`` stands above ``self.model = wrap(self.model)``, and nothing else calls it: in
``load``, ``self.model`` is what it was before.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import FUNCTIONS, LOOPS

OWN_BASES = frozenset({"object", "ABC"})  # that call no method of a class


@dataclass(frozen=True)
class Moment:
    """A line of an ``__init__`` that runs once for each object."""

    function: ast.FunctionDef
    module: Module
    line: int

    @property
    def name(self) -> str:
        """What tells it from all others."""
        return f"{self.module.path}:{self.line}"

    def precedes(self, statement: ast.AST, module: Module) -> bool:
        """Whether a statement of the same function runs later."""
        if module is not self.module or getattr(statement, "lineno", 0) <= self.line:
            return False
        return _function(statement, module) is self.function


class SetUpOrder:
    """Tells up to which line of ``__init__`` alone the places in a class run."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._called: dict[ast.AST, Moment | None] = {}

    def moment(self, node: ast.AST, module: Module) -> Moment | None:
        """The line of ``__init__`` up to which alone a place in its class runs; None if it may run
        later as well."""
        function = _function(node, module)
        if not isinstance(function, ast.FunctionDef):
            return None
        if function.name == "__init__":
            return _moment(node, function, module)
        if function not in self._called:
            self._called[function] = self._call(function, module)
        return self._called[function]

    def _call(self, method: ast.FunctionDef, module: Module) -> Moment | None:
        """The line of the last call of a method, where ``__init__`` alone calls it."""
        cls = module.table.parents[method]
        if not isinstance(cls, ast.ClassDef) or method.decorator_list:
            return None
        if any(last_name(base) not in OWN_BASES for base in cls.bases):
            return None  # a base class may call it as well
        first = next((s for s in cls.body if getattr(s, "name", "") == "__init__"), None)
        if not isinstance(first, ast.FunctionDef) or not first.args.args:
            return None
        itself, last = first.args.args[0].arg, None
        for other in self.project.modules:
            if not other.mentions(method.name):
                continue
            if any(text.value == method.name for text in other.table.strings):
                return None
            imported = {binding.name for binding in other.table.imports}
            for attribute in other.table.attributes:
                root = (access_path(attribute) or "").partition(".")[0]
                if attribute.attr != method.name or root in imported:
                    continue
                call = other.table.parents[attribute]
                of_self = isinstance(attribute.value, ast.Name) and attribute.value.id == itself
                called = isinstance(call, ast.Call) and call.func is attribute and of_self
                if other is not module or not called or _function(call, other) is not first:
                    return None
                moment = _moment(call, first, module)
                if moment is None:
                    return None
                last = moment if last is None or moment.line > last.line else last
        return last


def _moment(node: ast.AST, function: ast.FunctionDef, module: Module) -> Moment | None:
    around = module.table.ancestors(node)
    repeated = any(isinstance(parent, LOOPS) for parent in around)
    return None if repeated else Moment(function, module, getattr(node, "lineno", 0))


def _function(node: ast.AST, module: Module) -> ast.AST | None:
    parents = module.table.ancestors(node)
    return next((p for p in parents if isinstance(p, (*FUNCTIONS, ast.Lambda))), None)
