"""What a method does not meet, because the class that makes it has another in its place.

``class Base: def save(self): self.model.state_dict()`` beside ``class Sharded(Base)`` with a
``wrap`` that makes FSDP1's model, and a ``save`` of its own that does not ask for ``Base``'s: what
``Sharded`` keeps in ``self.model`` is never met in ``Base.save``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import class_of_method, is_self
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import Class, Value
from fsdp_migrate.fsdp1 import model_values
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import FUNCTIONS


def unmet(found: Iterable[Value], node: ast.expr, module: Module, tracer: Tracer) -> list[Value]:
    """The models that an attribute of ``self`` cannot be where a method uses it."""
    kept = root = node
    while isinstance(root, ast.Attribute):
        kept, root = root, root.value
    if not isinstance(kept, ast.Attribute) or not is_self(root, module):
        return []
    models = [v for v in found if model_values.is_model(v, tracer)]
    if not models:
        return []
    method = _method(node, module)
    owner = class_of_method(method, module) if method is not None else None
    if method is None or owner is None or method.name.startswith("__"):
        return []
    replacing = _replacing(method, Class(owner, module), tracer)
    gone = [v for v in models if _maker(v) in replacing] if replacing else []
    members = {cls.node for cls in tracer.family(Class(owner, module))}
    return [] if gone and _is_handed_over(kept.attr, gone, members, tracer) else gone


def _replacing(method: ast.FunctionDef, owner: Class, tracer: Tracer) -> set[ast.ClassDef]:
    """The classes whose objects have a method of their own in the place of one, and never run it
    in another way."""
    derived = tracer.subclasses(owner)
    own = [cls for cls in derived if _defines(cls, method.name)]
    if not own or _is_asked_for(method.name, owner, tracer):
        return set()
    below = {c.node for cls in own for c in (cls, *tracer.subclasses(cls))}
    # One with several bases may have the method of another of them first.
    return {c.node for c in derived if c.node in below and len(c.node.bases) == 1}


def _is_asked_for(name: str, owner: Class, tracer: Tracer) -> bool:
    """Whether a method may be run for an object whose class has one of its own: by ``super()``, or
    by the name of a class."""
    classes = {cls.node.name for cls in tracer.family(owner)}
    return any(
        _is_super(attribute.value)
        or (access_path(attribute.value) or "").rpartition(".")[2] in classes
        for module in tracer.project.read
        if module.mentions(name)
        for attribute in module.table.attributes_by_name.named(name)
    )


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) == "super"


def _is_handed_over(
    name: str, made: Iterable[Value], members: set[ast.ClassDef], tracer: Tracer
) -> bool:
    """Whether something that an object made may become the attribute of another: it is set from
    outside, or to what a method is given."""
    nodes = {value.node for value in made}
    stores = (
        (stored, module)
        for module in tracer.project.modules
        if module.mentions(name)
        for stored in module.table.stored_attributes
        if stored.attr == name
    )
    for stored, module in stores:
        statement = module.table.statement(stored)
        if not isinstance(statement, ast.Assign):
            return True
        reaching = model_values.definitions(statement.value, module)
        is_given = any(isinstance(each.node, ast.arg) for each in reaching)
        if not is_given and is_self(stored.value, module):
            continue
        owners = tracer.evaluate(stored.value, module) if not is_given else ()
        if any(getattr(getattr(v, "callee", None), "node", None) in members for v in owners):
            return True
        if any(v.node in nodes for v in tracer.evaluate(statement.value, module)):
            return True
    return False


def _defines(cls: Class, name: str) -> bool:
    return name in cls.module.table.scopes[cls.node].bindings


def _maker(value: Value) -> ast.ClassDef | None:
    """The class in one of whose methods a value is made."""
    method = _method(value.node, value.module)
    return class_of_method(method, value.module) if method is not None else None


def _method(node: ast.AST, module: Module) -> ast.FunctionDef | None:
    around = (n for n in module.table.ancestors(node) if isinstance(n, FUNCTIONS))
    function = next(around, None)
    return function if isinstance(function, ast.FunctionDef) else None
