"""Where parameters are whole in both versions: within ``summon_full_params``."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import FunctionNode, Made
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import FUNCTIONS

WHOLE = frozenset({"summon_full_params", "full_params"})


def is_gathered(node: ast.AST, study: Study, module: Module, depth: int = 3) -> bool:
    """Whether code runs only while parameters are whole: in every call of its function, if need be.

    Args:
        depth: how many callers up a ``with`` is looked for.
    """
    parents = module.table.parents
    while node in parents:
        node = parents[node]
        if type(node) is ast.With or type(node) is ast.AsyncWith:
            if any(_gathers(item.context_expr, study, module) for item in node.items):
                return True
        elif isinstance(node, FUNCTIONS) and depth:
            known = study.cache(_functions)
            if (node, depth) not in known:
                known[node, depth] = _is_called_gathered(node, study, module, depth)
            return known[node, depth]
    return False


def _gathers(opened: ast.expr, study: Study, module: Module) -> bool:
    """Whether what a ``with`` opens makes parameters whole."""
    if last_name(opened.func if isinstance(opened, ast.Call) else opened) in WHOLE:
        return True
    made = (v.made_by for v in study.values(opened, module) if isinstance(v, Made))
    return any(name.rpartition(".")[2] in WHOLE for name in made)


def _is_called_gathered(function: FunctionNode, study: Study, module: Module, depth: int) -> bool:
    """Whether every call of a function runs only while parameters are whole."""
    callers = study.tracer.callers(function, module)
    return bool(callers) and all(is_gathered(c.call, study, c.module, depth - 1) for c in callers)


def _functions(study: Study) -> dict[tuple[ast.AST, int], bool]:
    return {}


def is_discarded(node: ast.AST, module: Module) -> bool:
    """Whether the ``with`` around code in its function drops all changes: ``writeback=False``."""
    for parent in module.table.ancestors(node):
        for item in parent.items if isinstance(parent, (ast.With, ast.AsyncWith)) else ():
            match item.context_expr:
                case ast.Call(func=function, keywords=given) if last_name(function) in WHOLE:
                    found = {k.arg: k.value for k in given}.get("writeback")
                    return isinstance(found, ast.Constant) and found.value is False
    return False


def only_loads(block: ast.AST, model: ast.expr) -> bool:
    """Whether all that a ``with`` does is to load a state into a model."""
    match block:
        case ast.With(body=[ast.Expr(value=ast.Call(func=ast.Attribute(attr=attr, value=given)))]):
            return attr == "load_state_dict" and ast.dump(given) == ast.dump(model)
    return False


def gathers(model: ast.expr, module: Module) -> bool:
    """Whether an expression for a model stands in a ``with`` of its function that makes the
    parameters of that very model whole."""
    for parent in module.table.ancestors(model):
        for item in parent.items if isinstance(parent, (ast.With, ast.AsyncWith)) else ():
            match item.context_expr:
                case ast.Call(func=function, args=[given, *_]) if last_name(function) in WHOLE:
                    if ast.dump(given) == ast.dump(model):
                        return True
        if isinstance(parent, FUNCTIONS):
            return False
    return False
