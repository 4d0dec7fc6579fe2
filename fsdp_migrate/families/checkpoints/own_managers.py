"""Context managers of the project's own that do nothing but to set a kind of state.

``def whole(model): return FSDP.state_dict_type(model, ...)``, entered as ``with whole(model):``.
Where the states in all of these blocks say their kind themselves, nobody needs it any more.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from fsdp_migrate.analysis import name_uses
from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.version_tests import Reader
from fsdp_migrate.families.checkpoints.state_dict_contexts import read_setting_at
from fsdp_migrate.families.checkpoints.state_dict_settings import Setting
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import given_arguments

MANAGERS = frozenset({"contextlib.contextmanager"})


@dataclass(frozen=True, eq=False)
class Entered:
    """A ``with`` statement that enters a context manager, and the call that makes it."""

    statement: ast.With
    index: int
    call: ast.Call
    module: Module


def entered(
    context: ast.Call, module: Module, study: Study
) -> tuple[ast.FunctionDef, list[Entered]] | None:
    """The function that is there for a ``state_dict_type`` context alone, and where it is entered.

    None if it does something else as well, or may be called in another way.
    """
    function = _function_around(context, module)
    if function is None or not _is_only_for(context, function, module, study):
        return None
    scope = module.table.scopes[function].parent
    if scope is None or scope.is_function or len(scope.bindings[function.name]) != 1:
        return None
    found: list[Entered] = []
    for use, where in name_uses.uses_of(function.name, scope, module, study.project) or ():
        one = _entered_at(use, where)
        if one is None or [v.node for v in study.values(use, where)] != [function]:
            return None
        found.append(one)
    return (function, found) if found else None


def setting_made(
    entered: Entered, function: ast.FunctionDef, context: ast.Call, module: Module, study: Study
) -> Setting:
    """What a ``state_dict_type`` context sets where the function around it is entered, by what that
    is given there."""
    frame = study.tracer.frame(entered.call, entered.module, function)
    return read_setting_at(context, module, study, frame)


def _function_around(node: ast.AST, module: Module) -> ast.FunctionDef | None:
    scope = module.table.scope_of(node).function()
    return scope.node if scope is not None and isinstance(scope.node, ast.FunctionDef) else None


def _is_only_for(
    context: ast.Call, function: ast.FunctionDef, module: Module, study: Study
) -> bool:
    """Whether a function only hands a context out, or only enters it around what its user runs."""
    decorators = {name for d in function.decorator_list for name in study.external(d, module)}
    managed = len(function.decorator_list) == 1 and decorators == MANAGERS
    if not managed and function.decorator_list:
        return False
    return _hands_out(context, function.body, module, study, managed=managed)


def _hands_out(
    context: ast.Call, block: list[ast.stmt], module: Module, study: Study, *, managed: bool
) -> bool:
    """Whether a block does nothing but to hand a context out, or to enter it, in the end."""
    *above, last = block
    match last:
        case ast.Return(value=value) if value is context:
            is_last = not managed
        case ast.With(
            items=[ast.withitem(context_expr=entered, optional_vars=None)],
            body=[ast.Expr(value=ast.Yield(value=None))],
        ) if entered is context:
            is_last = managed
        case ast.If(test=test, body=body, orelse=orelse):
            dead = study.project.outdated
            parts = [part for part in (body, orelse) if part and part[0] not in dead]
            is_last = _only_asks(test, module, study) and all(
                _hands_out(context, part, module, study, managed=managed) for part in parts
            )
        case _:
            is_last = False
    return is_last and all(_does_nothing(each, module, study) for each in above)


def _only_asks(test: ast.expr, module: Module, study: Study) -> bool:
    """Whether a condition does nothing else: it compares, or asks for torch's version."""
    if not any(isinstance(node, (ast.Call, ast.NamedExpr, ast.Await)) for node in ast.walk(test)):
        return True
    return Reader(study.project, study.target).answer(test, module) is not None


def _does_nothing(statement: ast.stmt, module: Module, study: Study) -> bool:
    """Whether a statement is a docstring, an import, an error, or gives FSDP1's setting a name, and
    if so, whether it is one of those under conditions."""
    match statement:
        case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom() | ast.Raise():
            return True
        case ast.Assign(targets=targets, value=ast.Constant() | ast.Name() | ast.Attribute()):
            return all(isinstance(target, ast.Name) for target in targets)
        case ast.If(test=test, body=body, orelse=orelse):
            inside = (_does_nothing(each, module, study) for each in (*body, *orelse))
            return _only_asks(test, module, study) and all(inside)
        case ast.Assign(targets=[ast.Name()], value=ast.Call(func=called) as made):
            known = all(map(fsdp1.canonical, study.external(called, module) or [""]))
            return known and not any(
                isinstance(n, ast.Call) for n in ast.walk(made) if n is not made
            )
    return False


def _entered_at(use: ast.expr, module: Module) -> Entered | None:
    """The ``with`` statement that enters what is called by a name, of nothing but paths."""
    parents = module.table.parents
    call = parents[use]
    item = parents.get(call)
    if not isinstance(call, ast.Call) or call.func is not use or not isinstance(item, ast.withitem):
        return None
    statement = parents[item]
    given = given_arguments(call)
    plain = all(isinstance(a, ast.Constant) or access_path(a) is not None for a in given)
    if not isinstance(statement, ast.With) or item.optional_vars is not None or not plain:
        return None
    return Entered(statement, statement.items.index(item), call, module)
