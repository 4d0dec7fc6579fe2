"""What tests tell of objects of the project's own classes: ``assert isinstance(model, ZeroModel)``.

Behind it, what another plugin's class made is not met, whoever calls the function. FSDP1's models
are left to :mod:`narrowing`, since ``fully_shard`` changes the class that they are of.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from fsdp_migrate.analysis.flow import Test
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import Class, External, Made, Value
from fsdp_migrate.fsdp1 import model_values
from fsdp_migrate.syntax import type_expressions


def excluded(
    found: Iterable[Value], tests: Iterable[Test], module: Module, tracer: Tracer
) -> set[Value]:
    """The values that some test tells not to be met."""
    gone: set[Value] = set()
    objects = [v for v in found if _is_own(v, tracer)]
    for test in tests if objects else ():
        asked = _classes(test, module, tracer)
        if asked and not _is_given_later(asked, tracer, holds=test.holds):
            gone |= {v for v in objects if _is_of(v, asked, tracer) is (not test.holds)}
    return gone


def _is_given_later(asked: Iterable[Class], tracer: Tracer, *, holds: bool) -> bool:
    """Whether ``x.__class__ = Other`` may make an object one of some classes, or no more one."""
    stores = list(tracer.stores_named("__class__"))
    if not holds:
        return bool(stores)
    nodes = {cls.node for cls in asked}
    for stored, module in stores:
        statement = module.table.statement(stored)
        if not isinstance(statement, ast.Assign):
            return True
        for value in tracer.evaluate(statement.value, module):
            if not isinstance(value, (Class, External)):
                return True
            lineage = tracer.lineage(value) if isinstance(value, Class) else ()
            if any(cls.node in nodes for cls in lineage):
                return True
    return False


def _is_own(value: Value, tracer: Tracer) -> bool:
    """Whether a value is an object of a class of the project's, and no FSDP1 model."""
    return (
        isinstance(value, Made)
        and isinstance(value.callee, Class)
        and not model_values.is_model(value, tracer)
    )


def _classes(test: Test, module: Module, tracer: Tracer) -> list[Class]:
    """The project's own classes of which a test asks for one; none where it asks for others."""
    match test.node:
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, named], keywords=[]):
            nodes = list(type_expressions.classes(named))
        case ast.MatchClass(cls=named) if test.holds:
            nodes = [named]
        case _:
            return []
    found = [value for node in nodes for value in tracer.evaluate(node, module)]
    own = [value for value in found if isinstance(value, Class)]
    return own if nodes and len(own) == len(found) and not _is_open(own, tracer) else []


def _is_open(classes: Iterable[Class], tracer: Tracer) -> bool:
    """Whether some class may have instances that are not derived from it: one of them has a
    metaclass, or registers others."""
    return any(
        cls.node.keywords or tracer.external_bases(cls) & {"abc.ABC", "typing.Protocol"}
        for related in classes
        for cls in tracer.lineage(related)
    )


def _is_of(value: Value, classes: Iterable[Class], tracer: Tracer) -> bool | None:
    """Whether an object is of one of some classes; None where that may be."""
    assert isinstance(value, Made)
    assert isinstance(value.callee, Class)
    asked = {cls.node for cls in classes}
    if any(cls.node in asked for cls in tracer.lineage(value.callee)):
        return True
    is_self = isinstance(value.node, ast.ClassDef)  # which may be of a class derived from it
    derived = tracer.subclasses(value.callee) if is_self else ()
    if any(c.node in asked for d in derived for c in tracer.lineage(d)):
        return None
    return None if _has_unknown_base(value.callee, tracer) else False


def _has_unknown_base(cls: Class, tracer: Tracer) -> bool:
    """Whether a class may be derived from more than what is read."""
    for related in tracer.lineage(cls):
        for base in related.node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base  # Generic[T]
            values = tracer.evaluate(plain, related.module)
            named = tracer.project.external(plain, related.module)
            if not named and not all(isinstance(v, Class) for v in values):
                return True
            if not named and not values:
                return True
    return False
