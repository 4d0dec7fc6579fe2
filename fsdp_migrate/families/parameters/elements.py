"""The lists that a variable comes from, also where it was handed to another function.

Of ``t`` in ``def reduce(t): dist.all_reduce(t)`` it is ``group["params"]``, if some caller has
``for p in group["params"]: reduce(p.grad)``, or ``map(reduce, group["params"])``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.training_loop import applied_functions
from fsdp_migrate.families.training_loop.listed_parts import PARTS
from fsdp_migrate.families.training_loop.sharded_alike import ELEMENTWISE
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS

NUMBERED = frozenset({"named_parameters", "items", "enumerate"})
ALIKE = frozenset({"clone", "contiguous", "detach"})
NAMES = frozenset({"weight", "bias"})  # of the parameters of torch's own modules
ARITHMETIC = frozenset({"add", "sub", "mul", "div", "lerp", "addcmul", "addcdiv"})
DEEPEST = 4  # names and functions on the way to the loop
Origin = tuple[ast.expr, Module]


def lists_of(
    node: ast.expr, study: Study, module: Module, depth: int = DEEPEST
) -> tuple[Origin, ...]:
    """What the loops go over that give ``p`` of ``p``, ``p.data`` or ``p.grad``, or what these are
    picked out of. Asked once: calls of calls lead to the same again and again."""
    known = study.cache(_known)
    if (node, depth) not in known:
        known[node, depth] = tuple(dict.fromkeys(_lists_of(node, study, module, depth)))
    return known[node, depth]


def _known(study: Study) -> dict[tuple[ast.expr, int], tuple[Origin, ...]]:
    return {}


def _lists_of(node: ast.expr, study: Study, module: Module, depth: int) -> Iterator[Origin]:
    node = variable_of(node)
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
        yield node.value, module  # an element that is picked out of them
    match node:
        case ast.Call(func=ast.Name(id="next"), args=[inner, *_]):
            yield inner, module
    for operand in _operands(node):
        yield from lists_of(operand, study, module, depth)
    if not isinstance(node, ast.Name):
        return
    for definition in study.defined_by(node, module):
        given = definition.value
        if definition.kind is Kind.ELEMENT and given is not None:
            if not _is_name(given, definition.unpack):
                yield _zipped(given, definition.unpack), module
        elif definition.kind is Kind.ASSIGN and given is not None and depth:
            if not definition.unpack:
                yield from lists_of(given, study, module, depth - 1)
        elif definition.kind is Kind.PARAMETER and depth:
            yield from _given_by_callers(definition.node, study, module, depth - 1)


def variable_of(node: ast.expr) -> ast.expr:
    """``p`` of ``p.grad.data``, and of what is sharded as it is: ``torch.empty_like(p.grad)``,
    ``p.clone()``."""
    match node:
        case ast.Attribute(value=inner, attr=attr) if attr in PARTS:
            return variable_of(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in ALIKE:
            return variable_of(inner)
        case ast.Call(func=function, args=[like, *_]) if last_name(function).endswith("_like"):
            return variable_of(like)
    return node


def _operands(node: ast.expr) -> tuple[ast.expr, ...]:
    """What a value is computed from element by element, one of which may be a parameter: ``old``
    and ``p.data`` of ``old - p.data``. What comes of a ``DTensor`` is one."""
    match node:
        case ast.BinOp(left=left, op=op, right=right) if not isinstance(op, ast.MatMult):
            return left, right
        case ast.UnaryOp(operand=operand):
            return (operand,)
        case ast.Call(func=ast.Attribute(value=owner, attr=attr), args=args):
            if attr in ELEMENTWISE or attr in ARITHMETIC:
                return owner, *args
    return ()


def is_looped(node: ast.expr, study: Study, module: Module) -> bool:
    """Whether ``p``, ``p.data`` or ``p.grad`` is of nothing but a loop's variable."""
    found = study.defined_by(variable_of(node), module)
    return len(found) == 1 and all(each.kind is Kind.ELEMENT for each in found)


def _is_name(iterated: ast.expr, unpack: tuple[int, ...]) -> bool:
    """Whether a variable of a loop has the names or numbers of parameters: ``n`` of ``for n, p in
    model.named_parameters()``."""
    called = iterated.func if isinstance(iterated, ast.Call) else iterated
    return unpack == (0,) and last_name(called) in NUMBERED


def _zipped(iterated: ast.expr, unpack: tuple[int, ...]) -> ast.expr:
    """``a`` of ``for p, q in zip(a, b)``, for ``p``."""
    if isinstance(iterated, ast.Call) and last_name(iterated.func) == "zip" and unpack:
        given = iterated.args
        if unpack[0] < len(given) and not any(isinstance(g, ast.Starred) for g in given):
            return given[unpack[0]]
    return iterated


def _given_by_callers(
    parameter: ast.AST, study: Study, module: Module, depth: int
) -> Iterator[Origin]:
    function = next(p for p in module.table.ancestors(parameter) if isinstance(p, FUNCTIONS))
    if not isinstance(parameter, ast.arg) or isinstance(function, ast.Lambda):
        return
    for caller in study.tracer.callers(function, module):
        argument = caller.argument(function, parameter.arg)
        if argument is not None:
            one = variable_of(argument)
            if isinstance(one, ast.Attribute) and one.attr in study.cache(parameter_names):
                yield one, caller.module  # size(model.head.weight)
            yield from lists_of(argument, study, caller.module, depth)
    yield from applied_functions.given_each(function, parameter.arg, study)


def parameter_names(study: Study) -> frozenset[str]:
    """What parameters are called: those of torch's modules, and what classes of the project make.

    ``weight``, and ``scale`` of ``self.scale = nn.Parameter(...)``.
    """
    return NAMES | frozenset(
        attribute.attr
        for module in study.project.modules
        for call in module.table.calls_by_name.named("Parameter")
        if isinstance(assigned := module.table.parents[call], ast.Assign)
        for attribute in assigned.targets
        if isinstance(attribute, ast.Attribute)
    )
