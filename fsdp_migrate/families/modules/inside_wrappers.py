"""Modules inside FSDP1's wrappers, by the names that they have there.

``net`` of ``model = FSDP(net)`` stays a plain ``Net`` in FSDP1; ``fully_shard`` changes its class.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping.enclosing_models import class_of
from fsdp_migrate.families.wrapping.wrapped_modules import INNER
from fsdp_migrate.fsdp1.model_values import definitions
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor


def wrapper_of(node: ast.expr, study: Study, module: Module) -> ast.expr | None:
    """The FSDP1 model that has ``node`` inside; None if it is not known to be inside of one."""
    given: list[ast.expr | None] = [node]
    if isinstance(node, ast.Name):
        given += [definition.value for definition in definitions(node, module)]
    for value in given:
        match value:
            case ast.Attribute(value=wrapper, attr=attr) if attr in INNER:
                if study.traced(wrapper, module):
                    return wrapper
    path = access_path(node)
    for constructor in study.constructors.values() if path else ():
        if constructor.module is module and constructor.has_module and not constructor.keeps_class:
            same = access_path(constructor.wrapped) == path
            if same and _is_wrapped_before(node, constructor, module):
                return constructor.call
    return None


def _is_wrapped_before(node: ast.expr, constructor: Constructor, module: Module) -> bool:
    """Whether ``node`` is what a constructor above was given: of the same definitions, or an
    attribute that a method of the same class wraps first of all."""
    wrapped = constructor.wrapped
    here, there = (enclosing_function(module, each) for each in (node, wrapped))
    if here is there:
        first, second = definitions(node, module), definitions(wrapped, module)
        return bool(first) and first == second and _is_above(constructor.call, node)
    of_self = (access_path(node) or "").startswith("self.")
    owner, other = class_of(node, module), class_of(wrapped, module)
    if not of_self or owner is None or other is None or owner.node is not other.node:
        return False
    return getattr(there, "name", "") == "__init__"


def _is_above(call: ast.Call, node: ast.expr) -> bool:
    return (call.end_lineno or call.lineno, call.end_col_offset or 0) <= (
        node.lineno,
        node.col_offset,
    )
