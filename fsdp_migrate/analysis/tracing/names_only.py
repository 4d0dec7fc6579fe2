"""A tracer's parts that follow names, imports and assignments, but no calls and no objects.

Of a class nearly always all there is to be known; and to ask for the callers of a function that
makes classes, while the classes of an attribute are looked for, would lead through the whole
project and back.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.attributes import Attributes
from fsdp_migrate.analysis.tracing.calls import Calls
from fsdp_migrate.analysis.values import Class, Computed, Frame, Unknown, Value
from fsdp_migrate.syntax.scopes import Scope


class NoCalls(Calls):
    """Tells nothing of what calls give, and of what they give parameters."""

    def parameter(
        self,
        arg: ast.arg,
        scope: Scope,
        module: Module,
        frame: Frame | None,
        used: ast.expr | None = None,
    ) -> list[Value]:
        return [Unknown(arg, module, frame, f"{arg.arg} is a parameter")]

    def result(self, node: ast.Call, module: Module, frame: Frame | None) -> list[Value]:
        return [Computed(node, module, frame)]


class ClassAttributes(Attributes):
    """Knows the attributes that the bodies of classes give, and no others."""

    def of_instance(self, cls: Class, attr: str, node: ast.AST, module: Module) -> list[Value]:
        bindings = cls.module.table.scopes[cls.node].bindings.get(attr, [])
        return [v for binding in bindings for v in self.class_binding(binding, cls)]
