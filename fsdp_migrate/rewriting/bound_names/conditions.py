"""What conditions say: the same in other words, always true, or asked again."""

from __future__ import annotations

import ast
import re

from fsdp_migrate.syntax.trees import walk

Atoms = frozenset[tuple[str, bool]]  # conditions that hold, or do not


NAME = re.compile(r"Name\(id='(\w+)'")
OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.NotEq: ast.Eq,
    ast.IsNot: ast.Is,
    ast.NotIn: ast.In,
}


def condition_text(condition: ast.expr) -> str:
    """A condition as text: what is asked twice in the same words has the same answer."""
    return ast.dump(condition)


def known_outcome(test: ast.expr) -> bool | None:
    """The value that a condition always has when the program runs, if that is plain."""
    match test:
        case ast.Constant(value=value):
            return bool(value)
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return False
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            known = known_outcome(operand)
            return None if known is None else not known
    return None


def atoms_of(test: ast.expr, holds: bool) -> Atoms:
    """The parts of a condition that hold, or do not, where the whole does or does not.

    Where ``a and not b`` holds, ``a`` holds and ``b`` does not.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return atoms_of(test.operand, not holds)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) is holds:
        return frozenset().union(*(atoms_of(value, holds) for value in test.values))
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        opposite = OPPOSITES.get(type(test.ops[0]))
        if opposite is not None:  # ``a != b`` is ``a == b`` that does not hold
            plain = ast.Compare(test.left, [opposite()], test.comparators)
            return frozenset({(condition_text(plain), not holds)})
    return frozenset({(condition_text(test), holds)})


def names_in(atoms: Atoms) -> frozenset[str]:
    """The names that conditions ask for."""
    return frozenset(name for text, _ in atoms for name in NAME.findall(text))


def is_steady(test: ast.expr) -> bool:
    """Whether a condition has the same value each time: it calls nothing and binds nothing."""
    moving = (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
    return not any(isinstance(node, moving) for node in walk(test))
