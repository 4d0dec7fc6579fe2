"""A model by the name that it had before it was wrapped: ``net`` behind ``model = FSDP(net)``.

FSDP1 left flat parameters, or this rank's pieces, in the module that it wrapped; ``fully_shard``
shards that module itself. So what is done to ``net`` is done to sharded parameters, as before.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.training_loop.late_optimizers import may_follow
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor


def wrapped_before(node: ast.expr, module: Module, study: Study) -> frozenset[Constructor]:
    """Who has sharded the model that an expression is, or is a part of, further up in its
    function."""
    path = access_path(node)
    if path is None or not study.constructors:
        return frozenset()
    return frozenset(
        c
        for c in study.every_constructor
        if c.module is module and _is_behind(node, f"{path}.", c, study)
    )


def _is_behind(node: ast.expr, path: str, constructor: Constructor, study: Study) -> bool:
    given, module = constructor.arguments.get("module"), constructor.module
    whole = access_path(given) if given is not None else None
    if given is None or whole is None or not path.startswith(f"{whole}."):
        return False
    if enclosing_function(module, given) is not enclosing_function(module, node):
        return False
    table = module.table
    first, then = table.statement(given), table.statement(node)
    if first is then or not may_follow(first, then, module):
        return False
    return _root(given, module, study) == _root(node, module, study)


def _root(node: ast.expr, module: Module, study: Study) -> set[ast.AST]:
    """What gave its value to the variable that a path begins with."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return {definition.node for definition in study.defined_by(node, module)}
