"""What a method of an object gives back whose class nobody knows: ``build(name).wrap(net)``.

It may be what the project's methods of that name give back. That is enough to say what is otherwise
about a model's parameters, and not enough to write anything for a model: it may be none.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import exits
from fsdp_migrate.analysis.values import NOT_KNOWN, External, Made, Unknown
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor

OPEN = ("builtins.", "importlib.", "sys.")  # what these give may be of any class


def models_given_back(model: ast.expr, module: Module, study: Study) -> frozenset[Constructor]:
    """The models that the project's methods of a name give back, where that is all that is known of
    a model, and nothing shards it later."""
    found: set[Constructor] = set()
    sharded_later = study.cache(_wrapped_nodes)
    for value in study.values(model, module):
        match value:
            case Unknown(
                node=ast.Call(func=ast.Attribute(value=owner, attr=name)) as call, why=why
            ):
                is_asked = why.endswith(NOT_KNOWN) and call not in sharded_later
                if is_asked and not _is_of_library(owner, value.module, study):
                    found |= _given_back_by(name, study)
    return frozenset(found)


def _wrapped_nodes(study: Study) -> frozenset[ast.AST]:
    """What makes the modules that constructors shard."""
    return frozenset(
        value.node
        for constructor in study.every_constructor
        for each in constructor.wraps
        for value in study.values(each.wrapped, each.module)
    )


def _is_of_library(owner: ast.expr, module: Module, study: Study) -> bool:
    """Whether another library makes the object whose method is called."""
    return any(
        isinstance(value, Made)
        and isinstance(value.callee, External)
        and not value.made_by.startswith(OPEN)
        for value in study.values(owner, module)
    )


def _given_back_by(method: str, study: Study) -> frozenset[Constructor]:
    found: set[Constructor] = set()
    for function in study.tracer.methods_of_any(method):
        node = function.node
        returns, _ = exits(node, function.module) if not isinstance(node, ast.Lambda) else ([], 0)
        for statement in returns:
            given = statement.value
            if given is not None and study.traced(given, function.module):
                found |= study.models(given, function.module).constructors
    return frozenset(found)
