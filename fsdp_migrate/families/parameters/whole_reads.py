"""Blocks of ``summon_full_params`` that only go over parameters, and need no whole model.

``for p in model.parameters(): total += p.norm()`` reads one parameter at a time: ``full_tensor()``
gathers it where it is read. ``for p in model.parameters(): p.mul_(decay)`` changes each element by
itself, which does not mind that a rank has only some of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.syntax.expressions import names_in
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.trees import COMPREHENSIONS, walk

# What a DTensor tells of the whole parameter, without communication.
KNOWN = frozenset({"requires_grad", "ndim", "shape", "dim", "size", "numel", "dtype", "device"})
# What only the parameter itself has.
ITS_OWN = frozenset({"grad", "grad_fn", "is_leaf", "register_hook", "backward"})
ELEMENTWISE = frozenset({"add_", "sub_", "mul_", "div_", "clamp_", "zero_", "fill_"})
# What a condition may be made of that every rank finds the same.
SHARED = frozenset({"any", "all", "len", "max", "min", "abs"})
OF_RANK = frozenset({"device", "data_ptr", "get_device"})  # what each rank has another of
# Where code does not run, or not on every rank: what is gathered must be gathered on all.
OTHERWISE = (ast.Lambda, ast.While, ast.For, ast.Try, ast.With)


@dataclass(frozen=True)
class Loop:
    """What a block does: the parameter's uses to gather at, or the statement to gather above."""

    uses: tuple[ast.expr, ...] = ()
    above: ast.stmt | None = None
    variable: str = ""


def read_block(
    body: Sequence[ast.stmt], model: ast.expr, module: Module, *, gradients: bool = False
) -> Loop | None:
    """The one loop that a block consists of, if it goes over a model's parameters and reads them.

    Args:
        gradients: the block has whole gradients too, and may read them.

    Returns:
        None for a block that does something else, or of which nobody knows.
    """
    if len(body) != 1:
        return None
    statement = body[0]
    if isinstance(statement, ast.For):
        target = statement.target
        variable = _variable(target, statement.iter, model)
        if not variable or statement.orelse or _leaves(statement):
            return None
        region: list[ast.AST] = [*statement.body]
    elif isinstance(statement, (ast.Assign, ast.AugAssign, ast.Expr, ast.Return)):
        over = [n for n in walk(statement) if isinstance(n, COMPREHENSIONS)]
        if len(over) != 1 or len(over[0].generators) != 1 or isinstance(over[0], ast.DictComp):
            return None
        generator = over[0].generators[0]
        target = generator.target
        variable = _variable(target, generator.iter, model)
        if not variable or _is_conditional(over[0], statement, set(), module):
            return None
        region = [over[0].elt, *generator.ifs]
    else:
        return None
    uses = list(_uses(variable, region, module, gradients=gradients))
    if not uses or any(use is None for use in uses):
        return None
    found = [use for use in uses if use is not None and not _is_known(use, module)]
    loop = statement if isinstance(statement, ast.For) else over[0]
    names = _own_names(target, loop)
    skips = any(
        isinstance(n, ast.Continue) and _is_conditional(n, loop, names, module)
        for n in ast.walk(loop)
    )
    filters = generator.ifs if loop is not statement else []
    skips |= not all(_is_shared(test, names) for test in filters)
    once = len({ast.unparse(use) for use in found}) == len(found)
    if once and not skips and not any(_is_conditional(u, loop, names, module) for u in found):
        return Loop(uses=tuple(found))
    if gradients:
        return None
    if isinstance(statement, ast.For) and found and not any(_needs_own(u, module) for u in uses):
        return Loop(above=statement.body[0], variable=variable)
    return None


@dataclass(frozen=True)
class Changes:
    """What a loop that writes does: parameters that are read, and calls that copy to them."""

    uses: tuple[ast.expr, ...] = ()
    copies: tuple[tuple[ast.expr, ast.Call], ...] = ()  # the parameter, and ``copy_`` of it


def read_changes(body: Sequence[ast.stmt], model: ast.expr, module: Module) -> Changes | None:
    """The changes of the one loop that a block consists of, if no more than copies of tensors and
    numbers for each element are written; None if there is more."""
    match body:
        case [ast.For(target=target, iter=iterated, orelse=[]) as loop]:
            variable = _variable(target, iterated, model)
        case _:
            return None
    if not variable or _leaves(loop):
        return None
    uses: list[ast.expr] = []
    copies: list[tuple[ast.expr, ast.Call]] = []
    for statement in loop.body:
        for node in ast.walk(statement):
            if not isinstance(node, ast.Name) or node.id != variable:
                continue
            call = _writing_call(node, module)
            if call is not None and call.func.attr == "copy_":  # type: ignore[attr-defined]
                if len(call.args) != 1 or call.keywords or variable in names_in(call.args[0]):
                    return None
                copies.append((node, call))
            elif call is not None:
                given = [*call.args, *(k.value for k in call.keywords)]
                if not all(_is_number(g, names_in(target)) for g in given):
                    return None
            elif next(_uses(variable, [node], module)) is None:
                return None
            elif not _is_known(node, module):
                uses.append(node)
    names = _own_names(target, loop)
    if len(uses) > 1 or any(_is_conditional(use, loop, names, module) for use in uses):
        return None
    skips = any(isinstance(n, ast.Continue) for n in ast.walk(loop))
    return None if uses and skips else Changes(tuple(uses), tuple(copies))


def _writing_call(parameter: ast.Name, module: Module) -> ast.Call | None:
    """The statement ``p.mul_(0.5)`` or ``p.data.copy_(x)`` around a parameter, as a call."""
    parents = module.table.parents
    method = parents[parameter]
    if isinstance(method, ast.Attribute) and method.attr == "data":
        method = parents[method]
    if not isinstance(method, ast.Attribute) or method.attr not in {*ELEMENTWISE, "copy_"}:
        return None
    call = parents[method]
    alone = isinstance(call, ast.Call) and isinstance(parents[call], ast.Expr)
    return call if isinstance(call, ast.Call) and alone else None


def _is_number(node: ast.expr, bound: frozenset[str] | set[str]) -> bool:
    """Whether it is a number as far as one can see, the same for each parameter."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id in bound:
            return False
        if isinstance(part, (ast.Call, ast.Subscript)):
            return False
    return True


def _variable(target: ast.expr, iterated: ast.expr, model: ast.expr) -> str:
    """The loop variable that parameters have, if it goes over all of the model's."""
    match iterated, target:
        case ast.Call(func=ast.Attribute(value=owner, attr=method), args=[], keywords=[]), _:
            if ast.unparse(owner) != ast.unparse(model):
                return ""
            if method == "parameters" and isinstance(target, ast.Name):
                return target.id
            if method == "named_parameters" and isinstance(target, ast.Tuple):
                last = target.elts[-1]
                return last.id if len(target.elts) == 2 and isinstance(last, ast.Name) else ""
    return ""


def _leaves(loop: ast.For) -> bool:
    leaving = (ast.Break, ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Raise)
    return any(isinstance(n, leaving) for n in ast.walk(loop))


def _uses(
    variable: str, region: Sequence[ast.AST], module: Module, *, gradients: bool = False
) -> Iterator[ast.expr | None]:
    """Where the parameter, or its gradient, is read; None for what is not known to be reading."""
    for node in (n for part in region for n in ast.walk(part)):
        if not isinstance(node, ast.Name) or node.id != variable:
            continue
        read: ast.expr = node
        parent = module.table.parents[read]
        if gradients and isinstance(parent, ast.Attribute) and parent.attr == "grad":
            if not isinstance(parent.ctx, ast.Load):
                yield None
                continue
            read, parent = parent, module.table.parents[parent]
            if _is_compared(read, module):
                continue
        if isinstance(parent, ast.Attribute):
            method = parent
            if parent.attr == "data":
                outer = module.table.parents[parent]
                method = outer if isinstance(outer, ast.Attribute) else parent
            changes = method.attr.endswith("_") or method.attr in ITS_OWN
            stores = not isinstance(parent.ctx, ast.Load) or not isinstance(method.ctx, ast.Load)
            yield None if changes or stores else read
        elif isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute):
            yield read
        else:
            yield None


def _is_compared(gradient: ast.expr, module: Module) -> bool:
    """``p.grad is None``, which is the same of a sharded gradient."""
    match module.table.parents[gradient]:
        case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant()]):
            return left is gradient
    return False


def _is_known(use: ast.expr, module: Module) -> bool:
    parent = module.table.parents[use]
    return isinstance(parent, ast.Attribute) and parent.attr in KNOWN


def _needs_own(use: ast.expr | None, module: Module) -> bool:
    parent = module.table.parents[use] if use is not None else None
    return isinstance(parent, ast.Attribute) and parent.attr == "requires_grad"


def _is_conditional(node: ast.AST, within: ast.AST, names: set[str], module: Module) -> bool:
    """Whether code may run on some ranks only, of what runs on all.

    Args:
        names: the loop's variables, which are the same on every rank, and so are conditions on them
    """
    child = node
    for parent in module.table.ancestors(node):
        if parent is within:
            return False
        tests: list[ast.expr] = []
        if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test:
            tests = [parent.test]
        elif isinstance(parent, ast.BoolOp):
            tests = parent.values[: parent.values.index(of_kind(child, ast.expr))]
        elif isinstance(parent, (*OTHERWISE, *COMPREHENSIONS)):
            return True
        if not all(_is_shared(test, names) for test in tests):
            return True
        child = parent
    return True


def _own_names(target: ast.expr, loop: ast.AST) -> set[str]:
    """The variables of a loop that nothing in it gives another value."""
    stored = [n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and not _is_loaded(n)]
    return {name for name in names_in(target) if stored.count(name) == 1}


def _is_loaded(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)


def _is_shared(test: ast.expr, names: set[str]) -> bool:
    """Whether a condition is only about the loop's variables: ``name.endswith("weight")``."""
    used = {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}
    asked = {n.attr for n in ast.walk(test) if isinstance(n, ast.Attribute)}
    return used <= {*names, *SHARED} and asked.isdisjoint(OF_RANK)
