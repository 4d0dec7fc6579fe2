"""The sharded models among what an expression may be one of.

``getattr(self, name)`` is one of the object's attributes, and ``part`` of ``for part in
parts.values()`` one of what the dictionary has. Which one, only the running program knows; what is
right for the model and for all others can be written all the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.owners import NAMESPACES
from fsdp_migrate.analysis.values import Class, Made, Value, is_open
from fsdp_migrate.families.wrapping import sharded_parts
from fsdp_migrate.fsdp1.model_values import definitions, models
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import holder_of_attributes
from fsdp_migrate.syntax.scopes import Kind

DEPTH = 4  # names that stand for one another
OF_ITEMS = frozenset({"items", "values", "copy"})
TAKING = frozenset({"get", "pop", "popleft"})
LISTING = frozenset({"enumerate", "iter", "list", "reversed", "sorted", "tuple", "zip"})


def models_among(
    node: ast.expr, study: Study, module: Module, depth: int = DEPTH
) -> frozenset[Constructor]:
    """The models that are among the attributes, or the elements, of which an expression is one."""
    found: set[Constructor] = set()
    for owner in _taken_from(node, module):
        if isinstance(owner, (ast.List, ast.Tuple, ast.Set)) and depth:
            for each in owner.elts:
                found |= models_among(each, study, module, depth - 1)
        holder = holder_of_attributes(owner)
        if isinstance(owner, ast.Call) and holder is None:
            continue
        found |= _of_attributes(holder, study, module) if holder else set()
        found |= set() if holder else _of_elements(owner, study, module)
    match node:
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, name, *_]):
            if not isinstance(name, ast.Constant):
                found |= _of_attributes(owner, study, module)
        case ast.Attribute(value=owner) if _is_open(node, study, module):
            found |= _of_attributes(owner, study, module, by_name=True)
        case ast.Name() if depth:
            for definition in definitions(node, module):
                assigned = definition.kind is Kind.ASSIGN and not definition.unpack
                if assigned and definition.value is not None:
                    found |= models_among(definition.value, study, module, depth - 1)
    return frozenset(found)


def _taken_from(node: ast.expr, module: Module) -> Iterator[ast.expr]:
    """The containers of which an expression is an element."""
    match node:
        case ast.Subscript(value=container, slice=key):
            if not (isinstance(key, ast.Constant) and holder_of_attributes(container)):
                yield container
        case ast.Call(func=ast.Attribute(value=container, attr=attr)) if attr in TAKING:
            yield container
        case ast.Name():
            for definition in definitions(node, module):
                if definition.kind is Kind.ELEMENT and definition.value is not None:
                    yield from _gone_over(definition.value)


def _gone_over(node: ast.expr) -> Iterator[ast.expr]:
    """``parts`` of ``enumerate(parts)`` and of ``parts.items()``."""
    match node:
        case ast.Call(func=ast.Attribute(value=container, attr=attr), args=[]) if attr in OF_ITEMS:
            yield container
        case ast.Call(func=ast.Name(id=name), args=given) if name in LISTING:
            for each in given:
                yield from _gone_over(each)
        case ast.Name() | ast.Attribute() | ast.Subscript():
            yield node


def _is_open(node: ast.Attribute, study: Study, module: Module) -> bool:
    values = study.values(node, module)
    return bool(values) and is_open(values)


def _of_attributes(
    owner: ast.expr, study: Study, module: Module, *, by_name: bool = False
) -> set[Constructor]:
    """The models that an object has as attributes, with those that something sets by names that
    only the running program knows. Those alone, if ``by_name``."""
    found: set[Constructor] = set()
    for value in study.values(owner, module):
        if not isinstance(value, Made):
            continue
        kind = value.callee.node if isinstance(value.callee, Class) else value.node
        set_by_name = study.cache(_set_by_name).get(kind)
        if set_by_name:
            found |= set_by_name
        elif isinstance(value.callee, Class) and not by_name:
            for cls in study.tracer.family(value.callee):
                for name in sharded_parts.stored_names(cls.node):
                    found |= _models(study.tracer.attribute(value, name, cls.node, module), study)
            held = sharded_parts.stored_in(kind, study)
            found |= {c for call, c in study.constructors.items() if call in held}
        elif isinstance(value.node, ast.Call) and value.made_by in NAMESPACES:
            for keyword in value.node.keywords:
                if keyword.arg is None:
                    found |= _of_elements(keyword.value, study, value.module)
                elif not by_name:
                    found |= _models(study.values(keyword.value, value.module), study)
    return found


def _of_elements(container: ast.expr, study: Study, module: Module) -> set[Constructor]:
    """The models that a list or a dictionary is seen to have in it."""
    return _models(study.tracer.seen_in(container, module), study)


def _models(values: frozenset[Value], study: Study) -> set[Constructor]:
    return {c for made in models(values, study.tracer) for c in study.made_by(made)}


def _set_by_name(study: Study) -> dict[ast.AST, set[Constructor]]:
    """The models that something sets as attributes by names that are not written there
    (``setattr(self, name, part)``, ``self.__dict__.update(parts)``), by the classes of the objects,
    and by the calls that make other objects."""
    found: dict[ast.AST, set[Constructor]] = {}
    for call, module in study.tracer.calls_named("setattr", "update"):
        match call:
            case ast.Call(func=ast.Name(id="setattr"), args=[owner, name, given]):
                if isinstance(name, ast.Constant):
                    continue
                owners, parts = owner, _given(given, study, module)
            case ast.Call(func=ast.Attribute(value=dictionary, attr="update"), args=[given]):
                holder = holder_of_attributes(dictionary)
                if holder is None:
                    continue
                owners, parts = holder, _of_elements(given, study, module)
            case _:
                continue
        for value in study.values(owners, module) if parts else ():
            if isinstance(value, Made):
                kinds = {value.node}
                if isinstance(value.callee, Class):
                    kinds |= {cls.node for cls in study.tracer.family(value.callee)}
                for kind in kinds:
                    found.setdefault(kind, set()).update(parts)
    return found


def _given(node: ast.expr, study: Study, module: Module) -> set[Constructor]:
    """The models that something may be: all where nothing is known of it, in a file that wraps."""
    values = study.values(node, module)
    known = _models(values, study)
    for owner in _taken_from(node, module):
        known |= _of_elements(owner, study, module)
    wraps = any(c.module is module for c in study.constructors.values())
    unknown = not values or is_open(values)
    return known or (set(study.every_constructor) if wraps and unknown else set())
