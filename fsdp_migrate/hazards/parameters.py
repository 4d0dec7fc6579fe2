"""Whose parameters they are, and whether all of them are sharded."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping import fully_sharded
from fsdp_migrate.planning.context import Study

PARAMETERS = frozenset({"parameters", "named_parameters"})
IGNORED = "ignored_params"
LOOPS = (ast.For, ast.comprehension)


def model_of(parameter: ast.expr, module: Module) -> ast.expr | None:
    """The model whose parameters a loop goes through."""
    if not isinstance(parameter, ast.Name):
        return None
    scope = module.table.scope_of(parameter).lookup(parameter.id)
    bindings = scope.bindings[parameter.id] if scope is not None else []
    asked = [b.value for b in bindings if isinstance(b.node, LOOPS)]
    match asked:
        case [ast.Call(func=ast.Attribute(value=model, attr=name))] if name in PARAMETERS:
            return model if len(bindings) == 1 else None
    return None


def wholes(part: ast.expr) -> Iterator[ast.expr]:
    """``net.layers[0]``, ``net.layers`` and ``net`` of the first."""
    yield part
    while isinstance(part, (ast.Attribute, ast.Subscript)):
        part = part.value
        yield part


def holds_all(model: ast.expr, module: Module, study: Study) -> bool:
    """Whether no call of ``fully_shard`` on a model may leave parameters of it as they were."""
    known = fully_sharded.sharded(study)
    return not any(
        keyword.arg in {IGNORED, None}
        for value in study.values(model, module)
        for sharding in known.get(value, ())
        for keyword in sharding.call.keywords
    )
