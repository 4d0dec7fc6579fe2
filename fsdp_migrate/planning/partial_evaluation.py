"""What is known beforehand in a function, from the calls that are made of it.

Only for the support library's own code, whose conditions do nothing but ask.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from fsdp_migrate.planning.library_source import (
    Definition,
    Library,
    assigned,
    parameters_of,
    passed,
)
from fsdp_migrate.syntax.trees import walk

Entries = Mapping[str, Collection[str] | None]
"""What a program calls: by function the parameters that calls pass, None where any may be."""

Constants = Mapping[str, str]
"""The source of what a name always is."""


EMPTY = frozenset({"()", "[]", "{}", "set()"})
TERMINATORS = (ast.Return, ast.Raise, ast.Continue)
PLAIN_ENDS = frozenset({"True", "False", "None"})  # of ``a or None``: nobody asks which it is
READING = ("items", "values", "keys")
BLOCKS = ("body", "orelse", "finalbody")


@dataclass
class Known:
    """A function, and what is known of the names in it."""

    library: Library
    function: Definition
    constants: Constants  # of parameters

    def __post_init__(self) -> None:
        self.names: dict[str, str] = dict(self.library.facts)
        self._constants: dict[ast.expr, str | None] = {}
        if isinstance(self.function, ast.ClassDef):
            return
        known = -1
        while known < len(self.names):  # what is known decides what runs, and so what else is known
            known = len(self.names)
            self._constants.clear()
            self.names |= self._names_of(self.function)

    def _names_of(self, function: ast.FunctionDef) -> Constants:
        """The parameters and local names that are known, as far as that decides what runs."""
        stored = self.stored()
        found = {n: v for n, v in self.constants.items() if not stored.get(n)}
        for statement in self.live(function.body):
            target, value = assigned(statement)
            constant = None if value is None else self.constant(value)
            alone = target not in self.constants and stored.get(target) == 1
            changes = constant in EMPTY - {"()"} and not self._is_only_read(target)
            named = isinstance(value, ast.Constant) and isinstance(value.value, str)
            if constant is not None and alone and not changes and not named:
                found[target] = constant
        return found

    def stored(self) -> dict[str, int]:
        """How often each name is bound by what runs, those in comprehensions included."""
        found: dict[str, int] = {}
        for node in self.live_nodes(self.function.body):
            name = ""
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                name = node.id
            elif isinstance(node, (ast.FunctionDef, ast.arg)):
                name = node.name if isinstance(node, ast.FunctionDef) else node.arg
            if name:
                found[name] = found.get(name, 0) + 1
        return found

    def _is_only_read(self, name: str) -> bool:
        """Whether all that happens to a container is that its entries are looked at."""
        read = 0
        nodes = list(self.live_nodes(self.function.body))
        for node in nodes:
            match node:
                case ast.Attribute(value=ast.Name(id=owner), attr=method) if method in READING:
                    read += owner == name
                case ast.comprehension(iter=ast.Name(id=used)) | ast.For(iter=ast.Name(id=used)):
                    read += used == name
                case ast.If(test=ast.Name(id=used)) | ast.IfExp(test=ast.Name(id=used)):
                    read += used == name
                case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[ast.Name(id=used)]):
                    read += used == name
                case ast.Call(func=ast.Name(id=function), args=arguments):
                    if function in self.library.definitions:
                        read += sum(getattr(a, "id", "") == name for a in arguments)
        loads = [n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
        return sum(n.id == name for n in loads) == read

    def constant(self, node: ast.expr) -> str | None:
        """The source of what an expression always is; None where that is not known."""
        if node not in self._constants:
            self._constants[node] = self._constant(node)
        return self._constants[node]

    def _constant(self, node: ast.expr) -> str | None:
        match node:
            case ast.Constant():
                return self.library.segment(node)
            case ast.Name():
                return self.names.get(node.id)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                inner = [e.value for e in elements if isinstance(e, ast.Starred)]
                if len(inner) == len(elements) and all(map(self._is_empty, inner)):
                    return "()" if isinstance(node, ast.Tuple) else "[]"
            case ast.Dict(keys=keys, values=values):
                stars = all(key is None for key in keys)
                return "{}" if stars and all(map(self._is_empty, values)) else None
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                truth = self.truth(operand)
                return None if truth is None else str(not truth)
            case ast.BoolOp():
                left = self.operands(node)
                return self.constant(left[0]) if len(left) == 1 else None
            case ast.IfExp():
                chosen = self.chosen(node)
                return None if chosen is node else self.constant(chosen)
            case ast.Compare(left=left_side, ops=[operator], comparators=[right_side]):
                return self._compared(left_side, operator, right_side)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                kinds = {ast.ListComp: "[]", ast.SetComp: "set()", ast.DictComp: "{}"}
                source = node.generators[0]
                empty = self._is_empty(source.iter) or False in map(self.truth, source.ifs)
                return kinds.get(type(node), "()") if empty else None
            case ast.Call(func=ast.Attribute(value=owner, attr=method), args=[]):
                return "()" if method in READING and self._is_empty(owner) else None
            case ast.Call(func=ast.Name(id=name)):
                return self._returned(name, node)
        return None

    def _returned(self, name: str, call: ast.Call) -> str | None:
        """What a call always gives: of a few built-in functions, and of the library's own."""
        arguments = call.args
        if name == "set" and (not arguments or self._is_empty(arguments[0])):
            return "set()"
        if name == "isinstance" and self.constant(arguments[0]) == "None":
            return "False"
        if name == "isinstance" and self.constant(arguments[1]) == "()":
            return "False"
        if name == "getattr" and self.constant(arguments[0]) == "None":
            return self.constant(arguments[2])
        if name == "getattr" and len(arguments) == 3 and self._is_text(arguments[0]):
            return self.constant(arguments[2])  # a text has no attribute that is asked for here
        if name == "str" and self._is_text(arguments[0]):
            return self.constant(arguments[0])
        if name in {"tuple", "frozenset"} and (not arguments or self._is_empty(arguments[0])):
            return "()"
        function = self.library.definitions.get(name)
        if not isinstance(function, ast.FunctionDef) or function is self.function:
            return None
        constants = self.constants_of(call, function)
        key = name, frozenset(constants.items())
        if key not in self.library.returned:
            inner = Known(self.library, function, constants)
            documented = ast.get_docstring(function) is not None
            first = next(iter(inner.live(function.body[documented:])), None)
            value = first.value if isinstance(first, ast.Return) else None
            self.library.returned[key] = None if value is None else inner.constant(value)
        return self.library.returned[key]

    def constants_of(self, call: ast.Call, function: ast.FunctionDef) -> Constants:
        """What is known of a function's parameters from one call of it."""
        given = passed(call, function)
        if given is None:
            return {}
        values = {
            name: given.get(name, default) for name, default in parameters_of(function).items()
        }
        known = {n: self.constant(v) for n, v in values.items() if v is not None}
        return {name: value for name, value in known.items() if value is not None}

    def _compared(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> str | None:
        first, second = self.constant(left), self.constant(right)
        members = self._members(right)
        if members and first is not None and isinstance(operator, (ast.In, ast.NotIn)):
            return str((ast.literal_eval(first) in members) is isinstance(operator, ast.In))
        if isinstance(operator, (ast.In, ast.NotIn)):
            if second in EMPTY:
                return str(isinstance(operator, ast.NotIn))
            listed = isinstance(right, ast.Tuple) and [self.constant(e) for e in right.elts]
            if first is not None and listed and None not in listed:
                return str((first in listed) is isinstance(operator, ast.In))
        if first is None or second is None or {first, second} & EMPTY:
            return None
        one, other = ast.literal_eval(first), ast.literal_eval(second)
        match operator:
            case ast.Is() | ast.Eq():
                return str(one == other)
            case ast.IsNot() | ast.NotEq():
                return str(one != other)
            case ast.In() | ast.NotIn() if isinstance(other, str):
                return str((one in other) is isinstance(operator, ast.In))
        return None

    def _members(self, node: ast.expr) -> frozenset[str]:
        """The names in ``Enumeration.__members__`` of an enumeration of the library's."""
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr="__members__"):
                enumeration = self.library.definitions.get(name)
                body = enumeration.body if isinstance(enumeration, ast.ClassDef) else []
                return frozenset(assigned(statement)[0] for statement in body) - {""}
        return frozenset()

    def _is_text(self, node: ast.expr) -> bool:
        value = self.constant(node)
        return value is not None and value[:1] in {'"', "'"}

    def _is_empty(self, node: ast.expr) -> bool:
        return self.constant(node) in EMPTY

    def truth(self, node: ast.expr) -> bool | None:
        value = self.constant(node)
        if value is None:
            return None
        return value not in EMPTY and bool(ast.literal_eval(value))

    def operands(self, node: ast.BoolOp) -> list[ast.expr]:
        """What is left to ask of ``a and b`` and ``a or b``."""
        left: list[ast.expr] = []
        for operand in node.values:
            truth = self.truth(operand)
            if truth is isinstance(node.op, ast.Or):  # decides, and nothing behind it is asked
                return [*left, operand] if truth else [operand]
            is_last = operand is node.values[-1]
            if truth is None or (is_last and self.constant(operand) not in PLAIN_ENDS):
                left.append(operand)
        return left or node.values[-1:]

    def chosen(self, node: ast.IfExp) -> ast.expr:
        """The branch that is always taken, or the expression itself."""
        truth = self.truth(node.test)
        return node if truth is None else node.body if truth else node.orelse

    # What runs.

    def live(self, body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
        """The statements that may run, those in blocks after the one that has the block."""
        for statement in body:
            if isinstance(statement, ast.If):
                truth = self.truth(statement.test)
                if truth is None:
                    yield statement
                taken = [] if truth is False else statement.body
                other = [] if truth is True else statement.orelse
                yield from self.live(taken)
                yield from self.live(other)
                if truth is not None and ends(taken or other):
                    return
                continue
            if isinstance(statement, ast.For) and self._is_empty(statement.iter):
                continue
            if self.does_nothing(statement):
                continue
            yield statement
            for name in BLOCKS:
                yield from self.live(getattr(statement, name, []))
            if isinstance(statement, TERMINATORS):
                return

    def does_nothing(self, statement: ast.stmt) -> bool:
        """Whether a statement adds what is empty to something."""
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="update"), args=[argument])):
                return self._is_empty(argument)
        return False

    def live_nodes(self, body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
        """Every node that may be evaluated, but for what is inside a known one."""
        for statement in self.live(body):
            yield statement
            blocks = {id(s) for n in BLOCKS for s in getattr(statement, n, [])}
            for child in ast.iter_child_nodes(statement):
                if id(child) not in blocks:
                    yield from self._live_parts(child)

    def _live_parts(self, node: ast.AST) -> Iterator[ast.AST]:
        if isinstance(node, ast.expr) and self.constant(node) is not None:
            return
        if isinstance(node, ast.IfExp) and self.chosen(node) is not node:
            yield from self._live_parts(self.chosen(node))
            return
        yield node
        parts = self.operands(node) if isinstance(node, ast.BoolOp) else ast.iter_child_nodes(node)
        for part in parts:
            yield from self._live_parts(part)


def ends(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], TERMINATORS)


def _is_constant(node: ast.expr | None) -> TypeGuard[ast.expr]:
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Tuple) and not node.elts)


class Reached:
    """What is called, and with what."""

    def __init__(self, library: Library, entries: Entries) -> None:
        self.library = library
        self.calls: dict[str, list[Constants]] = {}  # by function, each call's constants
        self.open: set[str] = set()  # called in ways that are not seen
        for name, given in entries.items():
            self.calls[name] = [self._defaults(name, given)]

    def _defaults(self, name: str, given: Collection[str] | None) -> Constants:
        function = self.library.definitions[name]
        if given is None or isinstance(function, ast.ClassDef):
            return {}
        return {
            parameter: self.library.segment(default)
            for parameter, default in parameters_of(function).items()
            if parameter not in given and _is_constant(default)
        }

    def specialized(self, name: str) -> Known:
        """A function with what all calls of it have in common."""
        function = self.library.definitions[name]
        first, *others = self.calls[name]
        common = {n: v for n, v in first.items() if all(o.get(n) == v for o in others)}
        return Known(self.library, function, common)

    def follow(self, name: str) -> None:
        """Note the calls that a function or class makes of others."""
        definition = self.library.definitions[name]
        if isinstance(definition, ast.ClassDef):
            for node in self.library.used(walk(definition), definition):
                self.calls.setdefault(node.id, []).append({})
                self.open.add(node.id)
            return
        known = self.specialized(name)
        nodes = [*known.live_nodes(definition.body), *_header(definition)]
        called = {id(n.func): n for n in nodes if isinstance(n, ast.Call)}
        for node in self.library.used(nodes, definition):
            other = self.library.definitions[node.id]
            call = called.get(id(node))
            constants: Constants = {}
            if isinstance(other, ast.FunctionDef):
                if call is None or passed(call, other) is None:
                    self.open.add(other.name)
                else:
                    constants = known.constants_of(call, other)
            self.calls.setdefault(other.name, []).append(constants)


def _header(function: ast.FunctionDef) -> Iterator[ast.AST]:
    for part in (*function.decorator_list, function.args, function.returns):
        if part is not None:
            yield from walk(part)
