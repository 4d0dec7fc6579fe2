"""Which branches of a function a call takes, as far as its literal arguments tell.

``build(net, world_size=1)`` never gets to what stands under ``if world_size > 1``.
"""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.evaluator import Evaluator
from fsdp_migrate.analysis.values import (
    Class,
    Constant,
    Display,
    Frame,
    Function,
    FunctionNode,
    Made,
)
from fsdp_migrate.syntax import conditions
from fsdp_migrate.syntax.expressions import last_name, names_in
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS, walk

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
SETTERS = frozenset({"setattr", "__setattr__"})
DEEPEST = 4  # functions that ask functions
_Values = list[object]


class BranchesTaken:
    """Answers for one project, through its tracer."""

    def __init__(self, tracer: Evaluator) -> None:
        self.tracer = tracer
        self._asking: set[tuple[ast.AST, Frame]] = set()
        self._frames: dict[tuple[ast.Call, Frame], Frame] = {}
        self._conditions: dict[tuple[ast.AST, ast.AST], list[tuple[ast.expr, bool]]] = {}
        self._parts: dict[tuple[ast.expr, ast.AST], bool] = {}
        self._set: dict[str, bool] = {}

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

    def asks(self, node: ast.AST, module: Module, function: FunctionNode) -> bool:
        """Whether a parameter has a part in a condition around a node."""
        return bool(self._about_parameters(node, module, function))

    def _about_parameters(
        self, node: ast.AST, module: Module, function: FunctionNode
    ) -> list[tuple[ast.expr, bool]]:
        """The conditions around a node that a parameter of its function has a part in, or of one
        around that."""
        key = (node, function)
        if key not in self._conditions:
            found = conditions.around(node, module.table, function)
            self._conditions[key] = [
                each for each in found if self._has_part(function, each[0], module)
            ]
        return self._conditions[key]

    def _has_part(self, function: FunctionNode, test: ast.expr, module: Module) -> bool:
        """Whether a parameter of a function, or of one around it, has a part in a condition."""
        key = (test, function)
        if key not in self._parts:
            around = [n for n in module.table.ancestors(function) if isinstance(n, FUNCTIONS)]
            given = [each.args for each in (function, *around)]
            names = {
                a.arg for args in given for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)
            }
            self._parts[key] = not names.isdisjoint(self._asks_for(test, module))
        return self._parts[key]

    def _asks_for(self, test: ast.expr, module: Module) -> set[str]:
        """The names in a condition, and in the conditions that its variables stand for."""
        named = [node for node in walk(test) if isinstance(node, ast.Name)]
        assigned = [self._only_assigned(name, module) for name in named]
        inner = [names_in(each) for each in assigned if each is not None]
        return {name.id for name in named}.union(*inner)

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
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn() as op], comparators=[right]):
                listed = self._listed(right, module)
                if listed is None:
                    return None
                found = [value in listed for value in self._values(left, module, frame) or []]
                inside = _one(found)
                return None if inside is None else inside is isinstance(op, ast.In)
            case ast.Call(func=called):
                return self._of_predicate(test, called, module, frame)
            case ast.Name() if (assigned := self._only_assigned(test, module)) is not None:
                return self.answer(assigned, module, frame)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OPERATORS:
                first = self._values(left, module, frame) or []
                second = self._values(right, module, frame) or []
                pairs = itertools.product(first, second)
                return _one([_compared(OPERATORS[type(op)], a, b) for a, b in pairs])
        return _one([bool(value) for value in self._values(test, module, frame) or []])

    def _listed(self, node: ast.expr, module: Module) -> _Values | None:
        """The literals of a collection that is written out, here or as a tuple with a name."""
        if not isinstance(node, ast.Name):
            return _written(node)
        match list(self.tracer.evaluate(node, module)):
            case [Display(node=ast.Tuple() as named)]:
                return _written(named)
        return None

    def _of_predicate(
        self, call: ast.Call, called: ast.expr, module: Module, frame: Frame
    ) -> bool | None:
        """What a function of the project's answers that does nothing but to ask:
        ``is_sharded(strategy)``."""
        match list(self.tracer.evaluate(called, module)):
            case [Function(node=ast.FunctionDef(body=body) as function, module=where, owner=None)]:
                pass
            case _:
                return None
        asked = [s for s in body if not isinstance(s, ast.Expr)]  # docstrings ask nothing
        if len(asked) != 1 or not isinstance(asked[0], ast.Return) or asked[0].value is None:
            return None
        key = call, frame
        if key not in self._frames:
            self._frames[key] = Frame(call, module, function, frame)
        inner = self._frames[key]
        return self.answer(asked[0].value, where, inner) if inner.depth <= DEEPEST else None

    def _only_assigned(self, name: ast.Name, module: Module) -> ast.expr | None:
        """The one condition that a variable stands for: ``sharded = strategy == "fsdp"``."""
        owner = module.table.scope_of(name).lookup(name.id)
        if owner is None or not owner.is_function or len(owner.bindings[name.id]) != 1:
            return None
        binding = owner.bindings[name.id][0]
        is_test = isinstance(binding.value, (ast.Compare, ast.BoolOp, ast.UnaryOp))
        is_plain = binding.kind is Kind.ASSIGN and not binding.unpack
        return (
            binding.value if is_plain and is_test and isinstance(binding.value, ast.expr) else None
        )

    def _values(self, node: ast.expr, module: Module, frame: Frame) -> _Values | None:
        """The literals that a parameter may be in a call; None where it may be something else."""
        if isinstance(node, ast.Constant):
            return [node.value]
        if isinstance(node, ast.Attribute):
            return self._literal_fields(node, module, frame)
        owner = module.table.scope_of(node).lookup(node.id) if isinstance(node, ast.Name) else None
        asked: Frame | None = frame
        while owner is not None and asked is not None and asked.function is not owner.node:
            asked = asked.parent  # of the function around
        if owner is None or asked is None or not isinstance(node, ast.Name):
            return None
        kinds = [binding.kind for binding in owner.bindings[node.id]]
        if Kind.PARAMETER not in kinds or not set(kinds) <= {Kind.PARAMETER, Kind.ASSIGN}:
            return None
        found = self.tracer.evaluate(node, module, asked)
        values: _Values = [value.value for value in found if isinstance(value, Constant)]
        return values if len(values) == len(found) else None

    def _literal_fields(self, node: ast.Attribute, module: Module, frame: Frame) -> _Values | None:
        """The literals that ``config.fsdp`` may be in a call that is given ``Config(fsdp=False)``,
        whose fields nothing gives another value."""
        if not isinstance(node.value, ast.Name) or node.value.id in {"self", "cls"}:
            return None
        scope = module.table.scope_of(node).lookup(node.value.id)
        bindings = scope.bindings[node.value.id] if scope is not None else []
        is_given = scope is not None and scope.node is frame.function
        if not is_given or [b.kind for b in bindings] != [Kind.PARAMETER]:
            return None
        if self._may_be_set(node.attr):
            return None
        values: _Values = []
        for config in self.tracer.evaluate(node.value, module, frame):
            match config:
                case Made(callee=Class(node=cls), node=ast.Call(args=[], keywords=given)):
                    named = {keyword.arg: keyword.value for keyword in given}
                    value = named.get(
                        node.attr, None if None in named else _default(node.attr, cls)
                    )
                    if not _is_dataclass(cls) or not isinstance(value, ast.Constant):
                        return None
                    values.append(value.value)
                case _:
                    return None
        return values

    def _may_be_set(self, attr: str) -> bool:
        """Whether something may give an attribute of that name a value, on whatever object."""
        if attr not in self._set:
            self._set[attr] = any(
                any(stored.attr == attr for stored in module.table.stored_attributes)
                or any(
                    attr in (named := [*_texts(call)]) or not named
                    for call in module.table.calls_by_name.of(SETTERS)
                )
                or module.table.attributes_by_name.named("__dict__")
                for module in self.tracer.project.modules
            )
        return self._set[attr]


def _is_dataclass(cls: ast.ClassDef) -> bool:
    """Whether a class is a dataclass that sets its fields to what it is given, and no more."""
    own = {statement.name for statement in cls.body if isinstance(statement, FUNCTIONS)}
    decorators = [d.func if isinstance(d, ast.Call) else d for d in cls.decorator_list]
    plain = not cls.bases and own.isdisjoint({"__init__", "__post_init__", "__getattribute__"})
    return plain and [last_name(each) for each in decorators] == ["dataclass"]


def _texts(call: ast.Call) -> Iterator[object]:
    """The literals among a call's arguments."""
    return (given.value for given in call.args[:2] if isinstance(given, ast.Constant))


def _default(field: str, cls: ast.ClassDef) -> ast.expr | None:
    for statement in cls.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), value=default) if name == field:
                return default
    return None


def _written(node: ast.expr) -> _Values | None:
    """The literals of a collection that is written out."""
    match node:
        case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
            values = [e.value for e in elements if isinstance(e, ast.Constant)]
            return list(values) if len(values) == len(elements) else None
    return None


def _compared(compare: Callable[[Any, Any], bool], left: object, right: object) -> bool | None:
    try:
        return bool(compare(left, right))
    except TypeError:  # None > 1
        return None


def _one(answers: list[bool | None] | list[bool]) -> bool | None:
    """The answer that all agree on."""
    return answers[0] if answers and len(set(answers)) == 1 else None
