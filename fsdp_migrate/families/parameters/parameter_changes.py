"""What changes parameters in place: ``p.mul_(2)``, ``p.data = x``, and functions that do so.

``for q, p in zip(...): soft_update(q, p, tau)`` changes what ``soft_update`` calls ``target``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import argument_of, is_static
from fsdp_migrate.analysis.values import Function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import given_arguments
from fsdp_migrate.syntax.trees import walk

# Methods that end like in-place operations, and write nothing.
NO_WRITES = frozenset({"requires_grad_", "retain_grad_", "share_memory_"})
DEEPEST = 3  # functions that hand a parameter on


def changes_in_place(names: set[str], region: Sequence[ast.AST]) -> bool:
    """Whether something changes the loop's parameters in place."""
    for part in region:
        for node in walk(part):
            method = node.func if isinstance(node, ast.Call) else None
            if not isinstance(method, ast.Attribute) or method.attr in NO_WRITES:
                continue
            if method.attr.endswith("_") and variable(method.value) in names:
                return True
        if any(variable(owner) in names for _, owner in data_assignments(part)):
            return True
    return False


def changes(
    names: set[str], region: Sequence[ast.AST], study: Study, module: Module, depth: int = DEEPEST
) -> bool:
    """Whether something changes the loop's parameters in place, here or in what it calls."""
    if changes_in_place(names, region):
        return True
    return bool(depth) and any(
        changes(taken, body, study, where, depth - 1)
        for part in region
        for node in walk(part)
        if isinstance(node, ast.Call)
        for taken, body, where in _given_to(node, names, study, module)
    )


def _given_to(
    call: ast.Call, names: set[str], study: Study, module: Module
) -> Iterator[tuple[set[str], Sequence[ast.AST], Module]]:
    """What functions of the project's call these variables that a call gives them, and what runs
    in each."""
    if not any(variable(each) in names for each in given_arguments(call)):
        return
    for value in study.values(call.func, module):
        if not isinstance(value, Function) or isinstance(value.node, ast.Lambda):
            continue
        bound = value.owner is not None and not is_static(value.node)
        taken = value.node.args
        each = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs]
        given = {a.arg: argument_of(call, value.node, a.arg, bound=bound) for a in each}
        own = {name for name, g in given.items() if g is not None and variable(g) in names}
        if own:
            yield own, value.node.body, value.module


def holder(node: ast.expr) -> str:
    """``p`` of ``p`` and ``p.grad``, whose ``.data`` is assigned to."""
    inner = node.value if isinstance(node, ast.Attribute) and node.attr == "grad" else node
    return inner.id if isinstance(inner, ast.Name) else ""


def variable(node: ast.expr) -> str:
    """``p`` of ``p``, ``p.data``, and ``p.mul_(2)``."""
    while not isinstance(node, ast.Name):
        method = node.func if isinstance(node, ast.Call) else None
        if isinstance(method, ast.Attribute) and method.attr.endswith("_"):
            node = method.value
        elif isinstance(node, ast.Attribute) and node.attr == "data":
            node = node.value
        else:
            return ""
    return node.id


def has_data_assignments(module: Module) -> bool:
    data = module.table.attributes_by_name.named("data")
    stored = any(isinstance(attribute.ctx, ast.Store) for attribute in data)
    return stored or any(map(_sets_data, module.table.calls_by_name.named("setattr")))


def data_assignments(tree: ast.AST) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """The statements that assign to ``.data``, each with what it is assigned of.

    ``p.data = x``, ``p.data, e = e, p.data`` and ``setattr(p, "data", x)``.
    """
    for node in walk(tree):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)]) | ast.Assign(targets=targets):
                for target in targets:
                    if isinstance(target, ast.Attribute) and target.attr == "data":
                        yield node, target.value
            case ast.Expr(value=ast.Call(args=[owner, _, _]) as call) if _sets_data(call):
                yield node, owner


def _sets_data(call: ast.Call) -> bool:
    match call:
        case ast.Call(func=ast.Name(id="setattr"), args=[_, ast.Constant(value="data"), _]):
            return True
    return False
