"""Which branches of a function a call takes, as far as its literal arguments tell.

``build(net, world_size=1)`` never gets to what stands under ``if world_size > 1``.
"""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable
from typing import Any

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.evaluator import Evaluator
from fsdp_migrate.analysis.values import Constant, Frame, FunctionNode
from fsdp_migrate.syntax import conditions
from fsdp_migrate.syntax.expressions import names_in
from fsdp_migrate.syntax.scopes import Kind

OPERATORS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_Values = list[object]


class BranchesTaken:
    """Answers for one project, through its tracer."""

    def __init__(self, tracer: Evaluator) -> None:
        self.tracer = tracer
        self._asking: set[tuple[ast.AST, Frame]] = set()
        self._conditions: dict[tuple[ast.AST, ast.AST], list[tuple[ast.expr, bool]]] = {}

    def passes_by(self, frame: Frame | None, node: ast.AST, module: Module) -> bool:
        """Whether the call of a frame cannot get to ``node``, which stands in its function."""
        if frame is None:
            return False
        asked = self._about_parameters(node, module, frame.function)
        if not asked:
            return False  # as nearly always
        key = (node, frame)
        if key in self._asking:
            return False  # while it is being found out
        self._asking.add(key)
        try:
            return any(self.answer(test, module, frame) is (not holds) for test, holds in asked)
        finally:
            self._asking.remove(key)

    def _about_parameters(
        self, node: ast.AST, module: Module, function: FunctionNode
    ) -> list[tuple[ast.expr, bool]]:
        """The conditions around a node that a parameter of its function has a part in."""
        key = (node, function)
        if key not in self._conditions:
            given = function.args
            names = {a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
            found = conditions.around(node, module.table, function)
            self._conditions[key] = [
                each for each in found if not names.isdisjoint(names_in(each[0]))
            ]
        return self._conditions[key]

    def answer(self, test: ast.expr, module: Module, frame: Frame | None) -> bool | None:
        """What a condition is in a call; None where its literal arguments do not tell."""
        if frame is None:
            return None
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self.answer(operand, module, frame)
                return None if inner is None else not inner
            case ast.BoolOp(op=op, values=values):
                decisive = isinstance(op, ast.Or)
                answers = {self.answer(value, module, frame) for value in values}
                if decisive in answers:
                    return decisive
                return None if None in answers else not decisive
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OPERATORS:
                sides = self._values(left, module, frame), self._values(right, module, frame)
                pairs = itertools.product(*(side or [] for side in sides))
                return _one([_compared(OPERATORS[type(op)], a, b) for a, b in pairs])
        return _one([bool(value) for value in self._values(test, module, frame) or []])

    def _values(self, node: ast.expr, module: Module, frame: Frame) -> _Values | None:
        """The literals that a parameter may be in a call; None where it may be something else."""
        if isinstance(node, ast.Constant):
            return [node.value]
        owner = module.table.scope_of(node).lookup(node.id) if isinstance(node, ast.Name) else None
        if owner is None or owner.node is not frame.function or not isinstance(node, ast.Name):
            return None
        if [binding.kind for binding in owner.bindings[node.id]] != [Kind.PARAMETER]:
            return None
        found = self.tracer.evaluate(node, module, frame)
        values: _Values = [value.value for value in found if isinstance(value, Constant)]
        return values if len(values) == len(found) else None


def _compared(compare: Callable[[Any, Any], bool], left: object, right: object) -> bool | None:
    try:
        return bool(compare(left, right))
    except TypeError:  # None > 1
        return None


def _one(answers: list[bool | None] | list[bool]) -> bool | None:
    """The answer that all agree on."""
    return answers[0] if answers and len(set(answers)) == 1 else None
