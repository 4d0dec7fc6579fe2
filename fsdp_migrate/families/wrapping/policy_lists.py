"""Lists of policies that ``_or_policy`` joins: written out, or filled under conditions."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Made, Value
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.trees import LOOPS

DISPLAYS = (ast.List, ast.Tuple, ast.Set)
FROM_ONE = (ast.ListComp, ast.SetComp, ast.GeneratorExp)  # comprehensions of one expression


def elements(listed: ast.expr, made: Made, study: Study) -> list[tuple[ast.expr, Module]] | None:
    """The policies in a list, as they are written, if all of them are in sight."""
    found = study.tracer.evaluate(listed, made.module, made.frame)
    value = next(iter(found)) if len(found) == 1 else None
    if value is None or not isinstance(value.node, DISPLAYS):
        return None
    if any(isinstance(element, ast.Starred) for element in value.node.elts):
        return None
    first = [(element, value.module) for element in value.node.elts]
    if value.node is listed:
        return first
    added = list(study.tracer.additions(value))
    return [*first, *added] if not added or _only_grows(listed, value, added) else None


def spread(display: ast.AST) -> list[ast.expr]:
    """The elements of a list, those of ``*[...]`` in it among them; of ``*[f(x) for x in y]`` the
    comprehension."""
    found: list[ast.expr] = []
    for element in display.elts if isinstance(display, DISPLAYS) else ():
        match element:
            case ast.Starred(value=ast.List() | ast.Tuple() | ast.Set() as inner):
                found += spread(inner)
            case ast.Starred(value=ast.ListComp() | ast.SetComp() | ast.GeneratorExp() as inner):
                found.append(inner)
            case _:
                found.append(element)
    return found


def _only_grows(listed: ast.expr, made: Value, added: list[tuple[ast.expr, Module]]) -> bool:
    """Whether a list gets nothing but what is appended to it, each once, by a function's variable
    that is asked for nothing else but whether it is empty."""
    module, table = made.module, made.module.table
    if not isinstance(listed, ast.Name):
        return False
    scope = table.within[listed].lookup(listed.id)
    if scope is None or not scope.is_function or len(scope.bindings[listed.id]) != 1:
        return False
    known = {element for element, _ in added}
    for name in table.reads(listed.id, scope):
        parent = table.parents[name]
        match parent, table.parents[parent]:
            case ast.Attribute(attr="append"), ast.Call(args=[element]) as call:
                in_order = isinstance(table.parents[call], ast.Expr) and element in known
                if not in_order or any(isinstance(a, LOOPS) for a in table.ancestors(call)):
                    return False
            case ast.Call(func=ast.Name(id="len")), _:
                pass
            case ((ast.If() | ast.UnaryOp(op=ast.Not())), _):
                pass
            case ast.keyword(arg="policies"), _ if name is listed:
                pass
            case _:
                return False
    return all(where is module for _, where in added)


def is_rebound(node: ast.AST, module: Module) -> bool:
    """Whether a variable in an expression may have another value where that is asked for later."""
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
    for name in names:
        scope = module.table.within[name].lookup(name.id)
        if scope is not None and scope.is_function and len(scope.bindings[name.id]) > 1:
            return True
    return False
