"""Questions for another class than FSDP1's, asked of an object that may be its wrapper.

``isinstance(model, Net)`` is false of ``model = FSDP(Net())``, which only holds a ``Net``.
``fully_shard`` gives the module itself a class that is derived from ``Net``, so that it is true.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import (
    Class,
    Computed,
    Display,
    External,
    Made,
    Unknown,
    Value,
    Values,
)
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1 import model_values, unwrapping
from fsdp_migrate.syntax import type_expressions
from fsdp_migrate.syntax.expressions import last_name

# Classes that the wrapper is an instance of as well, and those that look at what an object has.
OF_ANY = frozenset({"torch.nn.Module", "torch.nn.modules.module.Module", "builtins.object"})
BY_CONTENTS = frozenset({"typing.Protocol", "typing_extensions.Protocol"})


def asked(check: ast.Call) -> tuple[ast.expr, ast.expr] | None:
    """The object, and the classes that ``isinstance`` or ``issubclass`` ask for."""
    match check:
        case ast.Call(func=ast.Name(id="isinstance"), args=[subject, classes], keywords=[]):
            return subject, classes
        case ast.Call(func=ast.Name(id="issubclass"), args=[kind, classes], keywords=[]):
            found = classified(kind)
            return None if found is None else (found, classes)
    return None


def classified(kind: ast.expr) -> ast.expr | None:
    """``m`` of ``type(m)`` and ``m.__class__``."""
    match kind:
        case ast.Attribute(value=subject, attr="__class__"):
            return subject
        case ast.Call(func=ast.Name(id="type"), args=[subject], keywords=[]):
            return subject
    return None


def classes(node: ast.expr, module: Module, tracer: Tracer) -> list[Value] | None:
    """The classes that an expression names, one by one; None if one of them is not known, or
    FSDP1's wrapper is an instance of it too."""
    found: list[Value] = []
    for each in type_expressions.classes(node):
        values = tracer.evaluate(each, module)
        for value in values:
            if isinstance(value, Display) and isinstance(value.node, ast.Tuple):
                inside = classes(value.node, value.module, tracer)
                if inside is None:
                    return None
                found += inside
            elif _is_other(value, tracer):
                found.append(value)
            else:
                return None
        if not values:
            return None
    return found


def is_open(node: ast.expr, module: Module, tracer: Tracer) -> bool:
    """Whether nothing tells which class an expression names, and it is none of the wrapper's."""
    values = [v for each in type_expressions.classes(node) for v in tracer.evaluate(each, module)]
    unknown = [value for value in values if isinstance(value, (Computed, Made, Unknown))]
    return bool(unknown) and all(v in unknown or _is_other(v, tracer) for v in values)


def _is_other(value: Value, tracer: Tracer) -> bool:
    """Whether a value is a class that FSDP1's wrapper is surely no instance of."""
    match value:
        case Class():
            bases = tracer.external_bases(value)
            return BY_CONTENTS.isdisjoint(bases) and fsdp1.FSDP not in map(fsdp1.canonical, bases)
        case External(name=name):
            named = fsdp1.canonical(name) is None and not fsdp1.is_fsdp2_class(name)
            by_contents = name.startswith(("typing.", "collections.abc."))
            return named and name not in OF_ANY and not by_contents
    return False


def is_unwrapped(values: Values) -> bool:
    """Whether some of the values are what was inside a wrapper, as ``model.module`` is.

    Who takes wrappers off meets the module itself in FSDP1, and in FSDP2.
    """
    return any(
        isinstance(value, (Computed, Unknown)) and _takes_off(value.node) for value in values
    )


def _takes_off(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr=name):
            return name in unwrapping.INNER
        case ast.Call(func=function, args=[_, ast.Constant(value=str(name)), *_]):
            return last_name(function) == "getattr" and name in unwrapping.INNER
    return False


def stops(check: ast.Call, module: Module) -> bool:
    """Whether the program ends with an error where a class is asked for and is not found."""
    parents = module.table.parents
    node: ast.AST = check
    negated, parent = False, parents[node]
    while isinstance(parent, (ast.BoolOp, ast.UnaryOp)):
        negated ^= isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not)
        node, parent = parent, parents[parent]
    match parent:
        case ast.Assert(test=test):
            return test is node and not negated
        case ast.If(test=test, body=body):
            return test is node and negated and isinstance(body[-1], ast.Raise)
    return False


def is_told_apart(check: ast.AST, module: Module, tracer: Tracer) -> bool:
    """Whether FSDP1's wrapper comes to a question that is answered with no for it, so that what
    follows a yes is for other objects alone. The migrated program asks so that this stays true.

    It does not where the object may have lost its wrapper before, or the program would end.
    """
    found = asked(check) if isinstance(check, ast.Call) else None
    if not isinstance(check, ast.Call) or found is None or access_path(found[0]) is None:
        return False
    if stops(check, module):
        return False
    if classes(found[1], module, tracer) is None:
        return False  # which is cheaper to ask
    values = tracer.evaluate(found[0], module)
    return bool(model_values.models(values, tracer)) and not is_unwrapped(values)
