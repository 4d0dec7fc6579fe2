"""Registries of classes: ``@WRAPPERS.register_module()`` and ``WRAPPERS.build(config)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.class_hierarchy import ClassHierarchy
from fsdp_migrate.analysis.tracing.evaluator import Evaluator
from fsdp_migrate.analysis.tracing.project_index import ProjectIndex
from fsdp_migrate.analysis.values import Class, External, Unknown
from fsdp_migrate.fsdp1 import api as fsdp1

BUILDS = frozenset({"build", "build_from_cfg", "create", "make"})  # methods of registries


class Registries:
    """Which classes are registered where, and which a ``build`` may make an instance of."""

    def __init__(self, tracer: Evaluator, index: ProjectIndex, classes: ClassHierarchy) -> None:
        self.evaluate = tracer.evaluate
        self.index = index
        self.classes = classes

    def classes_built_at(self, call: ast.Call, module: Module) -> list[Class]:
        """The registered classes that ``REGISTRY.build(config)`` may make an instance of."""
        if not isinstance(call.func, ast.Attribute):
            return []
        kept_in = self._identities(call.func.value, module)
        given = [k.value for k in call.keywords if k.arg == "default_args"]
        names = {name for node in given for name in self._literal_keys(node, module)}
        return [
            cls
            for cls, registry in self.registered
            if not kept_in.isdisjoint(self._identities(registry, cls.module))
            and (self._takes(cls) is None or names <= {"type", *(self._takes(cls) or ())})
        ]

    def built(self, cls: Class) -> Iterator[tuple[ast.Call, Module]]:
        """The calls of registries that may make an instance of a class."""
        if any(known.node is cls.node for known, _ in self.registered):
            for call, module in self.index.calls_named(*BUILDS):
                if any(each.node is cls.node for each in self.classes_built_at(call, module)):
                    yield call, module

    @cached_property
    def registered(self) -> list[tuple[Class, ast.expr]]:
        """Classes that may derive from FSDP's, with the registries that they are put into:
        ``@WRAPPERS.register_module()``."""
        return [
            (cls, registry)
            for cls in self.index.classes_with_bases
            if cls.node.decorator_list and cls.module.mentions(*fsdp1.WORDS)
            for registry in map(registry_of, cls.node.decorator_list)
            if registry is not None
        ]

    def _literal_keys(self, node: ast.expr, module: Module) -> Iterator[str]:
        """The keys that a dict surely is made with."""
        found = self.evaluate(node, module)
        for value in found if len(found) == 1 else ():
            match value.node:
                case ast.Dict(keys=keys):
                    yield from (str(k.value) for k in keys if isinstance(k, ast.Constant))
                case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
                    yield from (k.arg for k in keywords if k.arg)

    def _takes(self, cls: Class) -> frozenset[str] | None:
        """The parameters that instances of a class derived from FSDP's take; None for others."""
        if not any(fsdp1.canonical(n) == fsdp1.FSDP for n in self.classes.external_bases(cls)):
            return None
        for node in cls.node.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                own = {a.arg for a in (*node.args.args, *node.args.kwonlyargs)}
                return frozenset(own | set(fsdp1.CONSTRUCTOR_ARGUMENTS) | {"ignored_parameters"})
        return frozenset(fsdp1.CONSTRUCTOR_ARGUMENTS)

    def _identities(self, node: ast.expr, module: Module) -> set[ast.AST | str]:
        """What identifies the objects an expression may be: where each is made, or its name."""
        found = self.evaluate(node, module)
        return {
            v.name if isinstance(v, External) else v.node
            for v in found
            if not isinstance(v, Unknown)
        }


def registry_of(decorator: ast.expr) -> ast.expr | None:
    """``WRAPPERS`` of ``@WRAPPERS.register_module()``."""
    method = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(method, ast.Attribute) and method.attr.startswith("register"):
        return method.value
    return None
