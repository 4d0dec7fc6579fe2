"""States that are kept in memory while training goes on.

FSDP1's states were copies. ``get_model_state_dict`` hands out the parameters themselves when the
state is sharded, and on one rank also when it is whole: what is saved at once does not care, the
best state so far would follow the training.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1 import references
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study

DEPTH = 3  # how many callers up a returned state is followed
CONTAINERS = frozenset({"append", "appendleft", "setdefault", "insert"})
STEPS = frozenset({"backward", "step", "fit", "train_step", "training_step", "train_one_epoch"})
LOOPS = (ast.For, ast.AsyncFor, ast.While)
HOLDING = (ast.Dict, ast.Tuple, ast.List, ast.IfExp, ast.NamedExpr)


def is_kept(site: Site, study: Study) -> bool:
    """Whether the state asked for at ``site`` is still used after the next training step."""
    return _is_kept(site.node, site.module, study, DEPTH)


def _is_kept(node: ast.AST, module: Module, study: Study, depth: int) -> bool:
    parent = module.table.parents[node]
    while isinstance(parent, HOLDING):
        node, parent = parent, module.table.parents[parent]
    if isinstance(parent, ast.Call) and node in parent.args:
        return isinstance(parent.func, ast.Attribute) and parent.func.attr in CONTAINERS
    if isinstance(parent, ast.Return) and depth:
        function = references.enclosing_function(module, node)
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        callers = study.tracer.callers(function, module)
        return any(_is_kept(c.call, c.module, study, depth - 1) for c in callers)
    if not isinstance(parent, (ast.Assign, ast.AnnAssign)):
        return False
    targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
    if any(_holds(target, parent, module) for target in targets):
        return True
    function = references.enclosing_function(module, node)
    names = [name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    uses = (use for name in names for use in _uses(name, function, module))
    return depth > 0 and any(_is_kept(use, module, study, depth - 1) for use in uses)


def _holds(target: ast.expr, assignment: ast.stmt, module: Module) -> bool:
    """Whether what is assigned is used after a training step."""
    while isinstance(target, ast.Subscript):
        target = target.value
    if isinstance(target, (ast.Tuple, ast.List)):
        return any(_holds(each, assignment, module) for each in target.elts)
    if isinstance(target, ast.Attribute):
        return True  # of an object that is still there
    if not isinstance(target, ast.Name):
        return False
    function = references.enclosing_function(module, assignment)
    loop = _loop(assignment, module)
    steps = list(training_calls(function))
    first = assignment.end_lineno or 0
    for use in _uses(target, function, module):
        if loop is not None and (
            loop not in module.table.ancestors(use) or use.lineno < assignment.lineno
        ):
            return True
        if any(first < step.lineno < use.lineno for step in steps):
            return True
    return False


def _uses(target: ast.Name, function: ast.AST, module: Module) -> list[ast.Name]:
    table = module.table
    owner = table.scope_of(target).lookup(target.id)
    return [
        node
        for node in table.names
        if node.id == target.id
        and isinstance(node.ctx, ast.Load)
        and table.within[node].lookup(node.id) is owner
        and not is_subscripted_target(node, module)
        and references.enclosing_function(module, node) is function
    ]


def is_subscripted_target(node: ast.expr, module: Module) -> bool:
    """``states["model"] = ...``, where ``states`` is read only to be written to."""
    parent = module.table.parents[node]
    return isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store)


def _loop(node: ast.AST, module: Module) -> ast.AST | None:
    """The outermost loop around a node in its function that trains, if any."""
    function = references.enclosing_function(module, node)
    found = None
    for parent in module.table.ancestors(node):
        if parent is function:
            break
        if isinstance(parent, LOOPS) and any(training_calls(parent)):
            found = parent
    return found


def training_calls(node: ast.AST) -> Iterator[ast.Call]:
    """Calls that train."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            path = (access_path(call.func) or "").rpartition(".")
            name = path[2]
            trains = name.startswith("train") and not (path[0] and name == "train")
            if trains or name in STEPS:
                yield call
