"""Where parameters are whole in both versions: within ``summon_full_params``."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Made
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import FUNCTIONS

WHOLE = frozenset({"summon_full_params", "full_params"})


def is_gathered(node: ast.AST, study: Study, module: Module, depth: int = 3) -> bool:
    """Whether code runs only while parameters are whole: in every call of its function, if need be.

    Args:
        depth: how many callers up a ``with`` is looked for.
    """
    for parent in module.table.ancestors(node):
        for item in parent.items if isinstance(parent, (ast.With, ast.AsyncWith)) else ():
            call = item.context_expr
            name = call.func if isinstance(call, ast.Call) else call
            last = last_name(name)
            if last in WHOLE:
                return True
            for value in study.values(call, module):
                if isinstance(value, Made) and value.made_by.rpartition(".")[2] in WHOLE:
                    return True
        if isinstance(parent, FUNCTIONS) and depth:
            callers = study.tracer.callers(parent, module)
            return bool(callers) and all(
                is_gathered(c.call, study, c.module, depth - 1) for c in callers
            )
    return False


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
