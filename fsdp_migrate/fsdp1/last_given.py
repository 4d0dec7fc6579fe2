"""What a name was given last, where settings tell which of its assignments have run.

``model = Net()``, ``if ddp: model = FSDP(model)``, and further down ``model.module if ddp``: where
``ddp`` holds, ``model`` is what FSDP made, for certain.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from fsdp_migrate.analysis.flow import ELSEWHERE, Definition
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import class_of_method, is_self
from fsdp_migrate.analysis.tracing.setting_facts import SettingFacts
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import Class, Value
from fsdp_migrate.fsdp1.model_values import definitions
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS, position


class LastGiven:
    """Answers for one project."""

    def __init__(self, tracer: Tracer, apart: Tracer, settings: SettingFacts) -> None:
        self.tracer = tracer
        self.apart = apart
        self.settings = settings

    def kept(self, found: list[Value], node: ast.expr, module: Module) -> list[Value]:
        """Those values of a path that assignments give it of which none has replaced another where
        ``node`` uses it."""
        last = self._last(node, module)
        if not last:
            return found
        given = {v.node for d in last if d.value for v in self.tracer.evaluate(d.value, module)}
        return [value for value in found if value.node in given] or found

    def _last(self, node: ast.expr, module: Module) -> Sequence[Definition]:
        """The assignment that has certainly run, and those below it; none if nothing is known."""
        scope_of = module.table.scope_of
        reaching = [d for d in definitions(node, module) if d is not ELSEWHERE]
        owner = scope_of(node).lookup(node.id) if isinstance(node, ast.Name) else None
        stored = owner.bindings[node.id] if owner is not None and isinstance(node, ast.Name) else []
        if any(b.kind is Kind.ASSIGN and scope_of(b.node) is not scope_of(node) for b in stored):
            return ()  # another function uses it, or sets it, at a time that is not known
        if not reaching and isinstance(node, ast.Attribute) and is_self(node.value, module):
            reaching = self._set_up(node, module)
        below = list[Definition]()
        for each in sorted(reaching, key=lambda d: position(d.node), reverse=True):
            if each.kind is not Kind.ASSIGN or each.value is None or each.unpack:
                return ()
            below.append(each)
            if self._has_run(each, node, module):
                return below
        return ()

    def _set_up(self, node: ast.Attribute, module: Module) -> list[Definition]:
        """What ``__init__`` assigns to an attribute of ``self``, if nothing else does."""
        function = module.table.scope_of(node).function()
        method = function.node if function is not None else None
        owner = class_of_method(method, module) if isinstance(method, FUNCTIONS) else None
        if owner is None or self.apart.moment(node, module) is not None:
            return []
        stores = list(self.apart.stores(Class(owner, module), node.attr))
        methods = {store for _, store, _ in stores}
        if len(methods) != 1 or getattr(methods.pop(), "name", "") != "__init__":
            return []
        if not all(_is_of_self(*store) for store in self.settings.changes.stores(node.attr)):
            return []  # somebody may give an object another
        return [d for cls, _, d in stores if cls.node is owner]

    def _has_run(self, given: Definition, node: ast.expr, module: Module) -> bool:
        """Whether an assignment has run before a use, by the conditions around it alone."""
        table = module.table
        above_use = {node, *table.ancestors(node)}
        same = table.scope_of(given.node) is table.scope_of(node)
        if same and position(given.node) > position(node):
            return False
        child: ast.AST = given.node
        is_told = False
        for parent in table.ancestors(given.node):
            if parent in above_use or isinstance(parent, FUNCTIONS):
                return is_told and child not in above_use
            match parent:
                case ast.If(body=body, orelse=orelse) if child in body or child in orelse:
                    used = node, module
                    is_body = child in body
                    if not self.settings.is_certainly_taken(parent, body=is_body, used=used):
                        return False
                    is_told = True
                case ast.With() | ast.Assign() | ast.AnnAssign() | ast.Module():
                    pass
                case _:
                    return False
            child = parent
        return is_told


def _is_of_self(stored: ast.expr, module: Module) -> bool:
    """Whether what is given a value is an attribute of ``self``."""
    return isinstance(stored, ast.Attribute) and is_self(stored.value, module)
