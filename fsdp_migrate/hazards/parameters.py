"""Whose parameters they are, and whether all of them are sharded."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping import fully_sharded
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.scopes import Binding

PARAMETERS = frozenset({"parameters", "named_parameters"})
IGNORED = "ignored_params"
LOOPS = (ast.For, ast.comprehension)


def model_of(parameter: ast.expr, module: Module) -> ast.expr | None:
    """The model whose parameters a loop goes through, of which a name is the variable."""
    if not isinstance(parameter, ast.Name):
        return None
    scope = module.table.scope_of(parameter).lookup(parameter.id)
    bindings = scope.bindings[parameter.id] if scope is not None else []
    around = set(module.table.ancestors(parameter))
    inner = [b for b in bindings if b.node in around]  # loops around it: another is none of them
    asked = [b.value for b in inner or bindings if isinstance(b.node, LOOPS)]
    within = [b for b in bindings if b not in inner and _is_within(b.node, inner, module)]
    match asked:
        case [ast.Call(func=ast.Attribute(value=model, attr=name))] if name in PARAMETERS:
            return model if len(inner or bindings) == 1 and not within else None
    return None


def _is_within(node: ast.AST, loops: list[Binding], module: Module) -> bool:
    """Whether something is bound inside of one of some loops."""
    around = set(module.table.ancestors(node))
    return any(loop.node in around for loop in loops)


def holds_all(model: ast.expr, module: Module, study: Study) -> bool:
    """Whether no call of ``fully_shard`` on a model may leave parameters of it as they were."""
    known = fully_sharded.sharded(study)
    return not any(
        keyword.arg in {IGNORED, None}
        for value in study.values(model, module)
        for sharding in known.get(value, ())
        for keyword in sharding.call.keywords
    )
