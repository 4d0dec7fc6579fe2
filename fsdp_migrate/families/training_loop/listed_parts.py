"""Variables of a loop that a loop inside of it takes out of a list again.

``tensors = [p.grad]; tensors.append(p)``, and then ``for x in tensors: norms.append(x.norm())``
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

from fsdp_migrate.syntax.trees import walk

PARTS = frozenset({"grad", "data"})
# What torch's optimizers keep of a parameter that is sharded as it is.
STATES = frozenset(
    {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg"}
    | {"grad_avg", "acc_delta", "sum", "prev", "step_size", "ax", "mu", "eta"}
)


def listed(names: Collection[str], region: Sequence[ast.AST]) -> set[str]:
    """The variables of inner loops over lists of the region that hold one of ``names``."""
    nodes = [node for part in region for node in walk(part)]
    lists = {name for node in nodes for name, value in _filled(node) if _has_part(value, names)}
    loops = (n for n in nodes if isinstance(n, (ast.For, ast.AsyncFor, ast.comprehension)))
    return {
        name
        for loop in loops
        for name, given in _taken(loop.target, loop.iter)
        if _has_part(given, names) or (isinstance(given, ast.Name) and given.id in lists)
    }


def _filled(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """A list and what it is made of, or is given later."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield name, value
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, value
        case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
            yield name, value
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value]):
            yield name, ast.List(elts=[value])
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="extend"), args=[value]):
            yield name, value


def _has_part(value: ast.expr, names: Collection[str]) -> bool:
    """Whether ``p``, ``p.grad`` or ``p.data`` is an element of a list that is written out."""
    match value:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _has_part(left, names) or _has_part(right, names)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return any(_part_of(each) in names for each in elements)
    return False


def _part_of(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute) and node.attr in PARTS:
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _taken(target: ast.expr, iterated: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Each variable that gets the elements of a list: ``x`` of ``for x, y in zip(tensors, ys)``."""
    match target, iterated:
        case ast.Name(id=name), _:
            yield name, iterated
        case ast.Tuple(elts=[_, each]), ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]):
            yield from _taken(each, inner)
        case ast.Tuple(elts=targets), ast.Call(func=ast.Name(id="zip"), args=given):
            for each, inner in zip(targets, given, strict=False):
                yield from _taken(each, inner)
