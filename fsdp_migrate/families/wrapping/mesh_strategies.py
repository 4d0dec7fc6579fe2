"""Strategies that are chosen by how many dimensions the mesh has that a model is sharded over.

``FULL_SHARD`` over a mesh of one dimension and ``HYBRID_SHARD`` over one of two are what
``fully_shard`` does with such a mesh.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.model import Constructor

DIMENSIONS = {"FULL_SHARD": 1, "SHARD_GRAD_OP": 1, "HYBRID_SHARD": 2, "_HYBRID_SHARD_ZERO2": 2}


def are_of_mesh(
    strategies: Mapping[ast.expr, str],
    function: ast.FunctionDef,
    home: Module,
    calls: Iterable[ast.expr],
    constructor: Constructor,
) -> bool:
    """Whether a function chooses by the constructor's own mesh, each strategy for the dimensions
    that it needs.

    Args:
        strategies: where each is written in the function.
        calls: the calls of it that give the constructor's argument.
    """
    mesh = constructor.arguments.get("device_mesh")
    names = [arg.arg for arg in function.args.args]
    return (
        mesh is not None
        and len(names) == 1
        and all(_is_asked_of(mesh, call, constructor) for call in calls)
        and all(
            _dimensions(leaf, names[0], home) == DIMENSIONS.get(name)
            for leaf, name in strategies.items()
        )
    )


def _is_asked_of(mesh: ast.expr, call: ast.expr, constructor: Constructor) -> bool:
    """Whether a call is given the mesh, or a variable that it alone is assigned to."""
    match call:
        case ast.Call(args=[given], keywords=[]):
            pass
        case _:
            return False
    table = constructor.module.table
    scope = table.scope_of(given)
    if isinstance(given, ast.Name) and not isinstance(mesh, ast.Name) and scope.is_function:
        match scope.bindings.get(given.id):
            case [only] if isinstance(only.value, ast.expr):
                given = only.value
    path = ast.dump(given)
    stored = any(
        isinstance(each.value, ast.Name) and each.attr in path
        for each in table.stored_attributes
        if given.lineno < each.lineno <= constructor.call.lineno
    )
    return path == ast.dump(mesh) and not stored and _is_bound_once(mesh, constructor)


def _is_bound_once(mesh: ast.expr, constructor: Constructor) -> bool:
    """Whether the variable in an expression is given a value once."""
    table = constructor.module.table
    names = [n for n in ast.walk(mesh) if isinstance(n, ast.Name)]
    scopes = [(n.id, table.within[n].lookup(n.id)) for n in names]
    return all(scope is not None and len(scope.bindings[name]) == 1 for name, scope in scopes)


def _dimensions(leaf: ast.expr, mesh: str, home: Module) -> int | None:
    """How many dimensions the mesh has where a strategy is chosen: ``if mesh.ndim == 2``."""
    child: ast.AST = leaf
    for parent in home.table.ancestors(leaf):
        match parent:
            case ast.If(
                test=ast.Compare(
                    left=ast.Attribute(value=ast.Name(id=name), attr="ndim"),
                    ops=[ast.Eq()],
                    comparators=[ast.Constant(value=int(count))],
                ),
                body=body,
            ) if name == mesh and child in body:
                return count
            case ast.FunctionDef():
                return None
        child = parent
    return None
