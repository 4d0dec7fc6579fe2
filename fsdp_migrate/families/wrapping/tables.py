"""Settings that are looked up by name: ``FSDP(model, sharding_strategy=STRATEGIES[config.name])``.

A table can become another one, or go, if nothing but constructors looks anything up in it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set

from fsdp_migrate.analysis import name_uses
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import class_of_method, exits
from fsdp_migrate.analysis.values import Display, Function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.kinds import present


def leaves(node: ast.expr) -> Iterator[ast.expr]:
    """What an expression may be: both branches of a condition."""
    if isinstance(node, ast.IfExp):
        yield from leaves(node.body)
        yield from leaves(node.orelse)
    else:
        yield node


def assigned(
    node: ast.expr, module: Module, study: Study | None = None
) -> tuple[list[ast.expr], list[ast.Name]] | None:
    """What a variable is assigned that only takes a value to ``node``, and all its names.

    A parameter may have had the name before: ``strategy = STRATEGIES[strategy]``. A variable of the
    file itself is one that no other file may read, for which a study is needed.
    """
    table = module.table
    scope = table.scope_of(node)
    if not isinstance(node, ast.Name) or scope.is_class or node.id not in scope.bindings:
        return None
    given, names, statements = [], [node], set()
    parameters: set[ast.AST] = set()
    for binding in scope.bindings[node.id]:
        statement = binding.node
        match statement:
            case ast.arg():
                parameters.add(statement)
                continue
            case (
                ast.Assign(targets=[ast.Name() as target])
                | ast.AnnAssign(target=ast.Name() as target)
            ) if isinstance(binding.value, ast.expr):
                pass
            case _:
                return None
        given.append(binding.value)
        names.append(target)
        statements.add(statement)
    used = {n for n in table.names_by_id.named(node.id) if table.within[n].lookup(n.id) is scope}
    if parameters:
        if not _is_defined_by(statements, node, module):
            return None
        used -= {n for n in used if _is_defined_by(parameters, n, module)}
    if not given or used != set(names):
        return None
    if not scope.is_function:
        if study is None:
            return None
        uses = name_uses.uses_of(node.id, scope, module, study.project)
        if uses is None or {use for use, _ in uses} != used:
            return None
    return given, names


def _is_defined_by(definitions: Set[ast.AST], use: ast.AST, module: Module) -> bool:
    """Whether a name surely has its value from one of some definitions where it is used."""
    reaching = module.flow(module.table.scope_of(use)).reaching.get(use)
    return bool(reaching) and {d.node for d in present(reaching)} <= definitions


def returned_for(
    leaf: ast.expr, argument: str, module: Module, study: Study
) -> tuple[ast.FunctionDef, Module, list[ast.expr]] | None:
    """The function that chooses what an argument is, what it returns, and where it stands.

    None if it is called for anything else, or may return something that is not written.
    """
    found = _chooser(leaf, module, study)
    if found is None:
        return None
    function, home = found
    scope = home.table.scopes[function].parent
    uses = name_uses.uses_of(function.name, present(scope), home, study.project)
    calls = {n.func for n, m in asked_for(argument, study) if isinstance(n, ast.Call)}
    if uses is None or any(use not in calls for use, _ in uses):
        return None
    expressions = []
    for node in exits(function, home)[0]:
        given, _ = assigned(present(node.value), home, study) or ([present(node.value)], [])
        expressions += [each for expression in given for each in leaves(expression)]
    return function, home, expressions


def _chooser(leaf: ast.expr, module: Module, study: Study) -> tuple[ast.FunctionDef, Module] | None:
    """The function at the top of a file that a call runs, if it surely returns or raises."""
    if not isinstance(leaf, ast.Call):
        return None
    match list(study.values(leaf.func, module)):
        case [Function(node=ast.FunctionDef() as function, module=home)]:
            pass
        case _:
            return None
    returns, yields = exits(function, home)
    scope = home.table.scopes[function].parent
    is_plain = scope is home.table.module and not function.decorator_list and not yields
    is_plain = is_plain and class_of_method(function, home) is None
    is_plain = is_plain and len(home.table.module.bindings[function.name]) == 1
    ends = isinstance(function.body[-1], (ast.Return, ast.Raise))
    if not (is_plain and ends and returns and all(node.value is not None for node in returns)):
        return None
    return function, home


def lookup(node: ast.expr) -> tuple[ast.expr, ast.expr, ast.expr | None] | None:
    """The table, the key and the default of ``table[key]`` and ``table.get(key, default)``."""
    match node:
        case ast.Subscript(value=table, slice=key):
            return table, key, None
        case ast.Call(
            func=ast.Attribute(value=table, attr="get"), args=[key, default], keywords=[]
        ):
            return table, key, default
    return None


def table_of(node: ast.expr, module: Module, study: Study) -> tuple[ast.Dict, Module] | None:
    """The table that is written out for an expression, and its file."""
    match list(study.values(node, module)):
        case [Display(node=ast.Dict() as display, module=where)] if display.keys:
            return display, where
    return None


def is_for(table: ast.Dict, argument: str, study: Study, *, by_key: bool = True) -> bool:
    """Whether a table is read for an argument of constructors alone, wherever it has a name.

    Args:
        by_key: what only looks at its keys may read it as well.
    """
    known = study.cache(_known)
    key = table, argument, by_key, study.run_time
    if key not in known:
        known[key] = _is_for(table, argument, study, by_key=by_key)
    return known[key]


def _known(study: Study) -> dict[object, bool]:
    return {}


def _is_for(table: ast.Dict, argument: str, study: Study, *, by_key: bool) -> bool:
    home = next((m for m in study.project.modules if table in m.table.parents), None)
    if home is None:
        return False
    match home.table.parents[table]:
        case (
            ast.Assign(targets=[ast.Name() as target]) | ast.AnnAssign(target=ast.Name() as target)
        ):
            pass
        case _:
            return False
    scope = home.table.within[target].lookup(target.id)
    if scope is None or len(scope.bindings[target.id]) != 1:
        return False
    uses = name_uses.uses_of(target.id, scope, home, study.project)
    asked = {node for node, _ in _looked_up_for(argument, study)}
    return uses is not None and all(
        use is target or _lookup_of(use, module) in asked or (by_key and _is_of_keys(use, module))
        for use, module in uses
    )


def _lookup_of(use: ast.expr, module: Module) -> ast.AST:
    """The whole of ``table[key]`` and ``table.get(key)``."""
    parent = module.table.parents[use]
    return module.table.parents[parent] if isinstance(parent, ast.Attribute) else parent


def _looked_up_for(argument: str, study: Study) -> Iterator[tuple[ast.expr, Module]]:
    """What an argument may be, functions that choose it looked into."""
    for leaf, module in asked_for(argument, study):
        yield leaf, module
        found = returned_for(leaf, argument, module, study)
        if found is not None:
            yield from ((each, found[1]) for each in found[2])


def asked_for(argument: str, study: Study) -> Iterator[tuple[ast.expr, Module]]:
    """What an argument may be, of the constructors that are written out."""
    for constructor in study.constructors.values():
        node = constructor.arguments.get(argument)
        if node is None or constructor.node in study.run_time or constructor.problem:
            continue
        for expression in (assigned(node, constructor.module, study) or ([node], []))[0]:
            yield from ((leaf, constructor.module) for leaf in leaves(expression))


def _is_of_keys(use: ast.expr, module: Module) -> bool:
    """Whether a use of a table looks at its keys alone."""
    parent = module.table.parents[use]
    match parent:
        case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[only]):
            return only is use
        case ast.Attribute(attr="keys"):
            return isinstance(module.table.parents[parent], ast.Call)
        case ast.For(iter=iterated) | ast.comprehension(iter=iterated):
            return iterated is use
        case ast.keyword(arg="choices"):
            return True
        case ast.Call(func=ast.Name(id="list" | "sorted" | "tuple" | "set" | "len")):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Constant(), attr="join")):
            return True
    return False
