"""Modules inside FSDP1's wrappers, by the names that they have there.

``net`` of ``model = FSDP(net)`` stays a plain ``Net`` in FSDP1; ``fully_shard`` changes its class.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Made
from fsdp_migrate.families.wrapping.own_names import is_wrapped_before
from fsdp_migrate.families.wrapping.stored_models import is_module, may_shard
from fsdp_migrate.families.wrapping.wrapped_modules import INNER
from fsdp_migrate.fsdp1.api import FSDP, canonical
from fsdp_migrate.fsdp1.model_values import definitions
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import walk

INSIDE = (
    "this was false of the module in FSDP1's wrapper, and fully_shard makes the module itself an "
    "FSDPModule"
)
AMONG = (
    "what is gone through here begins with a module that was in FSDP1's wrapper, and no FSDP "
    "itself: fully_shard makes it an FSDPModule, which counts now as well"
)
WALKS = frozenset({"modules", "named_modules"})  # what gives a module itself, and all in it


def said_of_question(subject: ast.expr, study: Study, module: Module) -> str:
    """What is otherwise where something is asked whether it is FSDP's: of the module in a wrapper,
    or of all modules from there on. Nothing where it may be none."""
    if may_be_inside(subject, study, module):
        return INSIDE
    for definition in study.defined_by(subject, module):
        given = definition.value if definition.kind is Kind.ELEMENT else None
        for node in walk(given) if given is not None else ():
            match node:
                case ast.Call(func=ast.Attribute(value=whole, attr=attr)) if attr in WALKS:
                    if may_be_inside(whole, study, module):
                        return AMONG
    return ""


def may_be_inside(node: ast.expr, study: Study, module: Module) -> bool:
    """Whether an expression may be a module that is inside of FSDP1's wrapper when it is asked: by
    a path or name from outside, or ``self`` in one of its methods and what these give it to."""
    if wrapper_of(node, study, module) is not None:
        return True
    method = enclosing_function(module, node)
    if getattr(method, "name", "") == "__init__":
        return False  # it is wrapped later
    return any(
        isinstance(value, Made)
        and isinstance(value.callee, Class)
        and value.node is value.callee.node  # as ``self``
        and may_be_wrapped(value.callee, study)
        for value in study.values(node, module)
    )


def may_be_wrapped(cls: Class, study: Study) -> bool:
    """Whether the program may wrap modules of a class, by itself or by a policy."""
    if not is_module(cls, study) or FSDP in map(canonical, study.tracer.external_bases(cls)):
        return False
    known = study.cache(_wrapped)
    if cls.node not in known:
        known[cls.node] = any(_may_wrap(c, cls, study) for c in study.constructors.values())
    return known[cls.node]


def _wrapped(study: Study) -> dict[ast.AST, bool]:
    """The classes of which that was asked."""
    return {}


def _may_wrap(constructor: Constructor, cls: Class, study: Study) -> bool:
    if constructor.keeps_class:
        return False
    if constructor.may_have("auto_wrap_policy"):
        return True
    return may_shard(constructor, cls, study)


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
    if path is None:
        return None
    for constructor in study.constructors.values():
        if constructor.module is module and constructor.has_module and not constructor.keeps_class:
            same = access_path(constructor.wrapped) == path
            if same and is_wrapped_before(node, constructor.call, path, module, study):
                return constructor.call
    return None
