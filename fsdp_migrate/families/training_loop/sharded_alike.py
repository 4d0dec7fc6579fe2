"""Expressions of a parameter that are sharded as it is."""

from __future__ import annotations

import ast
from collections.abc import Collection

from fsdp_migrate.families.training_loop.listed_parts import PARTS, STATES
from fsdp_migrate.syntax.expressions import last_name

# What leaves every element where it is.
ELEMENTWISE = frozenset(
    {"detach", "clone", "float", "double", "half", "bfloat16", "to", "type", "cpu", "cuda", "abs"}
    | {"pow", "square", "view", "reshape", "flatten", "ravel", "contiguous", "nan_to_num", "neg"}
    | {"isnan", "isinf", "isfinite", "requires_grad_", "sign", "sqrt", "exp", "clamp", "clip"}
)
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)  # of elements


def reduced_parts(node: ast.expr, names: Collection[str]) -> list[ast.expr]:
    """``p.grad`` of ``p.grad.detach().float() ** 2``, and an optimizer's ``state[p]["exp_avg"]``,
    which is sharded as ``p``; nothing where no variable is left."""
    match node:
        case ast.Name(id=name):
            return [node] if name in names else []
        case ast.NamedExpr(value=inner):
            return reduced_parts(inner, names)
        case ast.Attribute(attr=attr):
            inner = node
            while isinstance(inner, ast.Attribute) and inner.attr in PARTS:
                inner = inner.value
            if isinstance(inner, ast.Name):
                return [node] if inner.id in names else []
            return reduced_parts(inner, names) if attr in PARTS else []
        case ast.Subscript(value=ast.Attribute(attr="state"), slice=ast.Name(id=name)):
            return [node] if name in names else []  # of an optimizer
        case ast.Subscript(value=state, slice=ast.Constant(value=str(key))):
            of_state = isinstance(state, ast.Subscript) or key in STATES  # not group["scale"]
            return [node] if of_state and reduced_parts(state, names) else []
        case ast.Call(func=function, args=[first, *_]) if last_name(function).endswith("_like"):
            return reduced_parts(first, names)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=attr), args=[first, *_]):
            return reduced_parts(first, names) if attr in ELEMENTWISE else []
        case ast.Call(func=ast.Attribute(value=value, attr=attr)):
            return reduced_parts(value, names) if attr in ELEMENTWISE else []
        case ast.UnaryOp(op=ast.USub() | ast.Invert(), operand=operand):
            return reduced_parts(operand, names)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if isinstance(op, ORDERS):
            return _combined(node, left, right, names)
        case ast.BinOp(left=left, op=op, right=right) if not isinstance(op, ast.MatMult):
            return _combined(node, left, right, names)
        case ast.IfExp(body=left, orelse=right):
            sides = (side for side in (left, right) if not isinstance(side, ast.Constant))
            found = [reduced_parts(side, names) for side in sides]
            return [part for parts in found for part in parts] if all(found) else []
    return []


def _combined(
    node: ast.expr, left: ast.expr, right: ast.expr, names: Collection[str]
) -> list[ast.expr]:
    """The parts of what two are combined to. Where one is out of sight, a number or a copy of a
    parameter (``p - self.start[name]``), all of it is sharded as the other is."""
    sides = [reduced_parts(side, names) for side in (left, right)]
    joins = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)
    if all(sides):
        return [*sides[0], *sides[1]]
    for side, other in ((sides[0], right), (sides[1], left)):
        if side and isinstance(other, ast.Constant):
            return [] if isinstance(other.value, str) else side
        if joins and side in ([left], [right]):
            return []  # texts are added to names: ``prefix + n``
    return [node] if any(sides) else []
