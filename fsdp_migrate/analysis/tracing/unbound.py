"""Expressions that are the same in every call of their function: ``self.model``, ``nn.Linear``.

What a call gives its parameters has no part in them, so that they are asked once for all calls. A
method that many call is looked through for each of them, and the attributes of ``self`` in it are
most of what it asks.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing import compiled
from fsdp_migrate.analysis.tracing.functions import has_decorator, is_self
from fsdp_migrate.syntax.scopes import Kind


class Unbound:
    """Answers for one project, asked once for every expression."""

    def __init__(self) -> None:
        self._known: dict[ast.expr, bool] = {}

    def has(self, node: ast.expr, module: Module) -> bool:
        """Whether an expression is a path from ``self`` or from a name of the module, and its
        function assigns no part of it."""
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return False
        if node not in self._known:
            self._known[node] = self._find(node, module)
        return self._known[node]

    def _find(self, node: ast.Name | ast.Attribute, module: Module) -> bool:
        scope = module.table.scope_of(node)
        if isinstance(node, ast.Attribute):
            written = module.table.written.get(scope.home(), ())
            is_left = node.attr not in written and node.attr != compiled.INSIDE
            return is_left and self.has(node.value, module)
        owner = scope.lookup(node.id)
        if owner is None or owner is module.table.module:
            return scope.is_free(node.id)
        if not is_self(node, module) or owner is not module.table.within[node].function():
            return False
        bindings = owner.bindings[node.id]
        is_only_given = [b.kind for b in bindings] == [Kind.PARAMETER]
        return is_only_given and not has_decorator(owner.node, "staticmethod")
