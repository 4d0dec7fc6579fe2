"""Models that nothing has run yet: the function that shards them is still at it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping.computing_methods import MODULE_API
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.trees import LOOPS, walk

RUNNING = frozenset({"apply", "forward", "__call__"})


def has_not_run(model: ast.expr, node: ast.AST, module: Module, study: Study) -> bool:
    """Whether a model has surely not run where ``node`` stands: the function around it shards all
    that the model may be, further down or with nothing in between that could run it."""
    path, function = access_path(model), enclosing_function(module, node)
    constructors = study.models(model, module).constructors
    line = getattr(node, "lineno", 0)
    if path is None or not constructors:
        return False
    loops = {n for n in module.table.ancestors(node) if isinstance(n, LOOPS)}
    for constructor in constructors:
        call = constructor.call
        if constructor.module is not module:
            return False
        if enclosing_function(module, call) is not function:
            return False
        if call.lineno > line:
            if loops or getattr(function, "name", "") != "__init__":
                return False
            continue
        between = _calls(call, line, function)
        repeated = loops - set(module.table.ancestors(call))
        if repeated or any(_may_run(each, path, study) for each in between):
            return False
    return True


def _calls(sharding: ast.Call, line: int, function: ast.AST) -> Iterator[ast.Call]:
    """The calls of a function from where it shards a model to a line."""
    for node in walk(function):
        if isinstance(node, ast.Call) and sharding.lineno < node.lineno < line:
            yield node


def _may_run(call: ast.Call, path: str, study: Study) -> bool:
    """Whether a call may run the module at a path: it is given it, or what holds it."""
    if call in study.constructors:
        return False
    method = call.func if isinstance(call.func, ast.Attribute) else None
    if method is not None and method.attr in MODULE_API - RUNNING:
        return False
    return any(_gives(node, path) for node in (call.func, *call.args, *call.keywords))


def _gives(node: ast.AST, path: str) -> bool:
    """Whether an expression is the module at a path, a method of it or of what holds it, or has
    one of these in it."""
    own = access_path(node) if isinstance(node, ast.expr) else None
    if own is not None:
        holder = own.rpartition(".")[0]
        return any(f"{path}.".startswith(f"{each}.") for each in (own, holder) if each) or (
            f"{own}.".startswith(f"{path}.")
        )
    return any(_gives(child, path) for child in ast.iter_child_nodes(node))
