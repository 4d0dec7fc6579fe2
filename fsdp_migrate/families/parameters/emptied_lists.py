"""Lists that FSDP1's flat parameters never got into, as of all matrices: those with weight decay.

``decay = [p for p in model.parameters() if p.ndim >= 2]`` was empty, for every piece has one
dimension. Now it is full, and what its group says applies for the first time.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.syntax.expressions import names_in
from fsdp_migrate.syntax.trees import walk

COMPARED = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def said_of_emptied(loop: ast.AST, module: Module) -> str:
    """What follows for the lists that a loop over parameters fills by their dimensions."""
    names = sorted(_emptied(loop, module))
    if not names:
        return ""
    listed = " and ".join(names)
    for group in walk(enclosing_function(module, loop)):
        setting = _decay_of(group, names) if isinstance(group, ast.Dict) else None
        if setting is not None:
            return (
                f"{listed} was empty then and its weight decay never applied, as it is now: to "
                f"train as before, pass weight_decay=0 for it (here {ast.unparse(setting)})"
            )
    return f"{listed} was empty then, and is not now"


def _emptied(loop: ast.AST, module: Module) -> set[str]:
    """The names of lists to which nothing is added where every parameter has one dimension."""
    if isinstance(loop, COMPREHENSIONS):
        parent = module.table.parents[loop]
        never = any(_of_one(test) is False for g in loop.generators for test in g.ifs)
        return (
            set(names_in(parent.targets[0])) if never and isinstance(parent, ast.Assign) else set()
        )
    dead: set[ast.AST] = set()
    for node in walk(loop):
        answer = _of_one(node.test) if isinstance(node, ast.If) else None
        if isinstance(node, ast.If) and answer is not None:
            dead.update(n for s in (node.orelse if answer else node.body) for n in walk(s))
    added = [(node, name) for node in walk(loop) for name in _added_to(node)]
    return {name for node, name in added if node in dead} - {
        name for node, name in added if node not in dead
    }


def _added_to(node: ast.AST) -> Iterator[str]:
    """``decay`` of ``decay.append(p)``."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append" | "add")):
            yield name


def _of_one(test: ast.expr) -> bool | None:
    """The answer to a test of a parameter of one dimension; None where more is asked."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            answer = _of_one(operand)
            return None if answer is None else not answer
        case ast.BoolOp(op=op, values=values):
            settles = isinstance(op, ast.Or)
            answers = [_of_one(value) for value in values]
            if settles in answers:
                return settles
            return None if None in answers else not settles
        case ast.Compare(left=left, ops=[op], comparators=[ast.Constant(value=int() as number)]):
            if type(op) in COMPARED and _is_number_of_dimensions(left):
                return bool(COMPARED[type(op)](1, number))
    return None


def _is_number_of_dimensions(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(attr="ndim") | ast.Call(func=ast.Attribute(attr="dim"), args=[]):
            return True
        case ast.Call(func=ast.Name(id="len"), args=[ast.Attribute(attr="shape")]):
            return True
        case ast.Call(func=ast.Name(id="len"), args=[ast.Call(func=ast.Attribute(attr="size"))]):
            return True
    return False


def _decay_of(group: ast.Dict, names: list[str]) -> ast.expr | None:
    """The weight decay of a group of one of the lists; None where it is none."""
    entries = {
        k.value: v
        for k, v in zip(group.keys, group.values, strict=True)
        if isinstance(k, ast.Constant)
    }
    params, decay = entries.get("params"), entries.get("weight_decay")
    if params is None or decay is None or names_in(params).isdisjoint(names):
        return None
    is_none = isinstance(decay, ast.Constant) and not decay.value
    return None if is_none else decay
