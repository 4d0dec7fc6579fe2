"""Parameters that are handed to the function which wraps their model, and used there behind that.

``run(net, list(net.parameters()))``, where ``run`` wraps what it is given: with
``use_orig_params=True`` FSDP1 kept the parameters, and ``fully_shard`` has made others.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import FunctionNode
from fsdp_migrate.families.parameters import early_parameters
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import given_arguments
from fsdp_migrate.syntax.trees import FUNCTIONS


def may_be_handed(node: ast.expr, names: frozenset[str], module: Module) -> bool:
    """Whether a call is given some parameters, or what ``names`` hold."""
    above = [each for each in module.table.ancestors(node) if isinstance(each, ast.Call)]
    return bool(names) or any(
        early_parameters.holds(given, frozenset(), node)
        for call in above
        for given in given_arguments(call)
    )


def are_used_behind(
    constructor: Constructor,
    node: ast.expr,
    names: frozenset[str],
    module: Module,
    study: Study,
) -> bool:
    """Whether a function that gets the parameters ``node`` uses them behind a constructor that it
    leads to, or keeps them for another one."""
    home = enclosing_function(module, node)
    names = early_parameters.given_on(names, home, module, study) if names else names
    seen: set[ast.AST] = set()
    waiting: list[tuple[ast.expr, Module]] = [(constructor.call, constructor.module)]
    for call, where in waiting:
        function = enclosing_function(where, call)
        if function is home or function in seen or not isinstance(function, FUNCTIONS):
            continue
        seen.add(function)
        callers = study.tracer.callers(function, where)
        held = {
            name
            for site in callers
            if enclosing_function(site.module, site.call) is home
            for name in _parameters(function)
            if early_parameters.holds(site.argument(function, name), names, node)
        }
        if held and _uses(function, frozenset(held), call, where, study):
            return True
        waiting += [(site.call, site.module) for site in callers]
    return False


def _parameters(function: FunctionNode) -> Iterator[str]:
    arguments = function.args
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        yield each.arg


def _uses(
    function: FunctionNode, held: frozenset[str], wrap: ast.expr, module: Module, study: Study
) -> bool:
    """Whether what some names of a function hold is used behind a call, or kept for another."""
    held = early_parameters.given_on(held, function, module, study)
    behind = module.table.statement(wrap).end_lineno or 0
    for node in ast.walk(function):
        if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
            continue
        path = access_path(node)
        if path is not None and path in held and node.lineno > behind:
            return True
    kept = (path.rpartition(".")[2] for path in held if path.startswith("self."))
    return any(is_read_elsewhere(name, function, study) for name in kept)


def is_read_elsewhere(name: str, here: ast.AST, study: Study) -> bool:
    """Whether another function than one reads an attribute of that name; not a module's weight."""
    return any(
        isinstance(attribute.ctx, ast.Load)
        and enclosing_function(module, attribute) is not here
        and not early_parameters.is_modules_own(attribute, module, study)
        for module in study.project.modules
        for attribute in module.table.attributes_by_name.named(name)
    )
