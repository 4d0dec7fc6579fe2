"""Code that tells wrappers by their classes: ``while isinstance(m, (FSDP, DDP)): m = m.module``.

FSDP2 wraps nothing. With ``FSDPModule`` for ``FSDP`` there, the loop would go on forever, or ask a
model for a module it has not: what is taken off are the other wrappers alone.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.syntax import type_expressions
from fsdp_migrate.syntax.kinds import of_kind

INNER = frozenset({"module", "_fsdp_wrapped_module"})


def around(check: ast.expr, module: Module) -> ast.While | ast.If | ast.IfExp | None:
    """What takes wrappers off and nothing else, if ``isinstance(m, ...)`` is its condition."""
    if not isinstance(check, ast.Call) or not check.args:
        return None
    path = access_path(check.args[0])
    holder = module.table.parents[check]
    if path is None:
        return None
    match holder:
        case ast.While(test=test, body=[ast.Assign(targets=[target], value=value)], orelse=[]):
            pass
        case ast.If(test=test, body=[ast.Assign(targets=[target], value=value)], orelse=[]):
            pass
        case ast.IfExp(test=test, body=value, orelse=target):
            pass
        case _:
            return None
    assert isinstance(holder, (ast.While, ast.If, ast.IfExp))
    takes_off = isinstance(value, ast.Attribute) and value.attr in INNER
    if test is not check or not takes_off or access_path(target) != path:
        return None
    return holder if access_path(value.value) == path else None  # type: ignore[attr-defined]


def is_in_loop(reference: ast.Attribute, module: Module) -> bool:
    """Whether ``m.module`` stands in such a loop."""
    statement = module.table.parents[reference]
    loop = module.table.parents.get(statement)
    return isinstance(loop, ast.While) and around(loop.test, module) is loop


def others(check: ast.Call, reference: ast.AST) -> list[ast.expr]:
    """The other classes that ``isinstance(m, (FSDP, DDP))`` asks for."""
    asked = check.args[1]
    return [e for e in asked.elts if e is not reference] if isinstance(asked, ast.Tuple) else []


def is_condition_of_loop(check: ast.AST, module: Module) -> bool:
    """Whether a loop goes on while something is a sharded model, and takes things off it."""
    if not isinstance(check, ast.Call) or not check.args:
        return False
    path = access_path(check.args[0])
    child: ast.AST = check
    for parent in module.table.ancestors(check):
        if isinstance(parent, ast.While) and parent.test is child:
            stored = [t for n in ast.walk(parent) if isinstance(n, ast.Assign) for t in n.targets]
            return any(access_path(target) == path for target in stored)
        if not isinstance(parent, ast.expr):
            return False
        child = parent
    return False


def listed_for(node: ast.expr, module: Module) -> list[ast.Call]:
    """The ``isinstance`` calls that some classes are for, if they are for nothing else but types.

    ``WRAPPERS = (FSDP, DDP)``, ``WRAPPERS += (FSDP,)``, ``def unwrap(m, classes=(FSDP, DDP))``,
    ``Wrapped = FSDP | DDP``, ``Wrapped = Union[FSDP, DDP]``.
    """
    table = module.table
    holder = classes_around(node, module)
    if holder is None:
        return []
    parent = table.parents[holder]
    match parent:
        case (
            ast.Assign(targets=[ast.Name() as target]) | ast.AugAssign(target=ast.Name() as target)
        ):
            name, scope = target.id, table.scope_of(target).lookup(target.id)
        case ast.arguments():
            function = table.parents[parent]
            positional = [*parent.posonlyargs, *parent.args]
            given = dict(zip(reversed(parent.defaults), reversed(positional), strict=False))
            given |= {d: a for d, a in zip(parent.kw_defaults, parent.kwonlyargs, strict=True) if d}
            if holder not in given or function not in table.scopes:
                return []
            name, scope = given[holder].arg, table.scopes[function]
        case _:
            return []
    found: list[ast.Call] = []
    for use in table.names:
        same = use.id == name and table.within[use].lookup(name) is scope
        if not same or not isinstance(use.ctx, ast.Load):
            continue
        match table.parents[use]:
            case (
                ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, classes]) as check
            ):
                if classes is not use:
                    return []
                found.append(check)
            case ast.BinOp(op=ast.Add()) as longer:
                held = table.parents[longer]
                targets = held.targets if isinstance(held, ast.Assign) else []
                if not any(isinstance(t, ast.Name) and t.id == name for t in targets):
                    return []
            case _ if not type_expressions.is_type(use, table):
                return []
    return found


def classes_around(node: ast.expr, module: Module) -> ast.expr | None:
    """The tuple or union of classes that ``node`` is one of."""
    table = module.table
    holder: ast.AST = node
    above = table.parents[holder]
    while isinstance(above, ast.BinOp) and isinstance(above.op, ast.BitOr):
        holder, above = above, table.parents[above]
    if isinstance(above, ast.Tuple):
        holder, above = above, table.parents[above]
    if isinstance(above, ast.Subscript) and type_expressions.is_generic(above.value, table):
        holder = above
    holder = of_kind(holder, ast.expr)
    return holder if holder is not node else None


def takes_off(check: ast.Call, module: Module) -> bool:
    """Whether what ``isinstance`` says yes to loses a wrapper."""
    return around(check, module) is not None or is_condition_of_loop(check, module)
