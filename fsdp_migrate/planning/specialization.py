"""Functions of the support library, specialized to the calls that a program makes of them.

A support function answers for every argument that FSDP1 took; a program passes a few of them. What
a parameter is when no call passes it is known, and so is which branches are never taken then: they
are left out, with the parameter, and with the functions that nothing calls any more (Jones, Gomard
and Sestoft, *Partial Evaluation and Automatic Program Generation*, 1993).

Only for the library's own code, whose conditions do nothing but ask.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeGuard

from fsdp_migrate.syntax.trees import last_part, walk

Entries = Mapping[str, Collection[str] | None]
"""What a program calls: by function the parameters that calls pass, None where any may be."""

Constants = Mapping[str, str]
"""The source of what a name always is."""

Definition = ast.FunctionDef | ast.ClassDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

MANY = 1000
WIDTH = 88  # of emitted lines, black's
INDENT = " " * 4
EMPTY = frozenset({"()", "[]", "{}", "set()"})
TERMINATORS = (ast.Return, ast.Raise, ast.Continue)
ASKING = frozenset({"getattr", "isinstance", "modules", "named_parameters", "parameters", "vars"})
PLAIN_ENDS = frozenset({"True", "False", "None"})  # of ``a or None``: nobody asks which it is
READING = ("items", "values", "keys")


def facts_of(text: str) -> frozenset[str]:
    """The names that a library sets to True at its top: what a program may have."""
    return frozenset(_Library(text).facts)


def specialize(text: str, entries: Entries, lacking: Collection[str] = ()) -> dict[str, str]:
    """The source of each function and class of a library that its users reach, in its order.

    Args:
        text: the library's source; its functions call each other without recursion.
        entries: what is called from outside; functions that only these call are specialized to
            those calls.
        lacking: those of :func:`facts_of` that do not hold.
    """
    library = _Library(text, lacking)
    reached = _Reached(library, entries)
    for name in library.callers_first:
        if name in reached.calls:
            reached.follow(name)
    dropped: dict[str, frozenset[str]] = {}
    result: dict[str, str] = {}
    for name in reversed(library.callers_first):
        if name not in reached.calls:
            continue
        function = library.definitions[name]
        known = reached.specialized(name)
        writer = _Writer(library, known, dropped)
        if isinstance(function, ast.ClassDef):
            facts = any(getattr(n, "id", "") in library.facts for n in walk(function))
            text = library.segment(function)
            result[name] = writer.written_class(function) if facts else text
            continue
        kept = None if name in reached.open else entries.get(name, ())
        result[name], dropped[name] = writer.written(kept)
    return {name: result[name] for name in library.definitions if name in result}


class _Library:
    """The source and the functions in it."""

    def __init__(self, text: str, lacking: Collection[str] = ()) -> None:
        self.lines = text.split("\n")
        body = ast.parse(text).body
        names = [_assigned(node)[0] for node in body]
        self.facts = {name: str(name not in lacking) for name in names if name}
        self.returned: dict[tuple[str, frozenset[tuple[str, str]]], str | None] = {}
        found = [n for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
        self.definitions: dict[str, Definition] = {n.name: n for n in found}

    @cached_property
    def callers_first(self) -> list[str]:
        """The names, each before those that it uses."""
        found: dict[str, None] = {}

        def visit(name: str) -> None:
            if name not in found:
                for used in self.used(walk(self.definitions[name]), self.definitions[name]):
                    visit(used.id)
                found[name] = None

        for name in self.definitions:
            visit(name)
        return list(reversed(found))

    def used(self, nodes: Iterable[ast.AST], definition: Definition) -> Iterator[ast.Name]:
        """The names among ``nodes`` that are other functions of the library."""
        own: set[str] = {definition.name}
        if isinstance(definition, ast.FunctionDef):
            own |= _parameters(definition).keys()
        for node in nodes:
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
                continue
            if node.id in self.definitions and node.id not in own:
                yield node

    def segment(self, node: ast.AST) -> str:
        """The source of a node, a definition's decorators among it."""
        return self.between(_start(node), _span(node)[1])

    def between(self, start: tuple[int, int], end: tuple[int, int]) -> str:
        lines = self.lines[start[0] - 1 : end[0]]
        lines[-1] = lines[-1][: end[1]]
        lines[0] = lines[0][start[1] :]
        return "\n".join(lines)


def _parameters(function: ast.FunctionDef) -> dict[str, ast.expr | None]:
    """The parameters by name, each with its default; none of stars."""
    given = function.args
    listed = [*given.posonlyargs, *given.args]
    missing: list[ast.expr | None] = [None] * (len(listed) - len(given.defaults))
    defaults = [*missing, *given.defaults, *given.kw_defaults]
    names = [p.arg for p in (*listed, *given.kwonlyargs)]
    return dict(zip(names, defaults, strict=True))


def passed(call: ast.Call, function: ast.FunctionDef) -> dict[str, ast.expr] | None:
    """What a call passes by parameter; None where stars may pass anything."""
    names = list(_parameters(function))
    if any(isinstance(a, ast.Starred) for a in call.args):
        return None
    if any(k.arg is None for k in call.keywords) and function.args.kwarg is None:
        return None
    found = dict(zip(names, call.args, strict=False))
    return found | {k.arg: k.value for k in call.keywords if k.arg is not None}


# -- what is known --------------------------------------------------------------------------------


@dataclass
class _Known:
    """A function, and what is known of the names in it."""

    library: _Library
    function: Definition
    constants: Constants  # of parameters

    def __post_init__(self) -> None:
        self.names: dict[str, str] = dict(self.library.facts)
        self._constants: dict[ast.expr, str | None] = {}
        while isinstance(
            self.function, ast.FunctionDef
        ):  # what is known decides what runs, and so what else is known
            known = len(self.names)
            self._constants.clear()
            stored = self._stored()
            found = {n: v for n, v in self.constants.items() if not stored.get(n)}
            for statement in self.live(self.function.body):
                target, value = _assigned(statement)
                constant = None if value is None else self.constant(value)
                alone = target not in self.constants and stored.get(target) == 1
                changes = constant in EMPTY - {"()"} and not self._is_only_read(target)
                named = isinstance(value, ast.Constant) and isinstance(value.value, str)
                if constant is not None and alone and not changes and not named:
                    found[target] = constant
            self.names |= found
            if len(self.names) == known:
                return

    def _stored(self) -> dict[str, int]:
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
        if name == "isinstance" and self.constant(arguments[1]) == "()":
            return "False"
        if name == "getattr" and self.constant(arguments[0]) == "None":
            return self.constant(arguments[2])
        if name in {"tuple", "frozenset"} and (not arguments or self._is_empty(arguments[0])):
            return "()"
        function = self.library.definitions.get(name)
        if not isinstance(function, ast.FunctionDef) or function is self.function:
            return None
        constants = self.constants_of(call, function)
        key = name, frozenset(constants.items())
        if key not in self.library.returned:
            inner = _Known(self.library, function, constants)
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
        values = {name: given.get(name, default) for name, default in _parameters(function).items()}
        known = {n: self.constant(v) for n, v in values.items() if v is not None}
        return {name: value for name, value in known.items() if value is not None}

    def _compared(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> str | None:
        first, second = self.constant(left), self.constant(right)
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
                if truth is not None and _ends(taken or other):
                    return
                continue
            if isinstance(statement, ast.For) and self._is_empty(statement.iter):
                continue
            if self.does_nothing(statement):
                continue
            yield statement
            for name in _BLOCKS:
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
            blocks = {id(s) for n in _BLOCKS for s in getattr(statement, n, [])}
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


_BLOCKS = ("body", "orelse", "finalbody")


def _ends(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], TERMINATORS)


def _assigned(statement: ast.stmt) -> tuple[str, ast.expr | None]:
    """The name that a statement binds to a value, with that."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name, value
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            return name, value
    return "", None


def _is_constant(node: ast.expr | None) -> TypeGuard[ast.expr]:
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Tuple) and not node.elts)


class _Reached:
    """What is called, and with what."""

    def __init__(self, library: _Library, entries: Entries) -> None:
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
            for parameter, default in _parameters(function).items()
            if parameter not in given and _is_constant(default)
        }

    def specialized(self, name: str) -> _Known:
        """A function with what all calls of it have in common."""
        function = self.library.definitions[name]
        first, *others = self.calls[name]
        common = {n: v for n, v in first.items() if all(o.get(n) == v for o in others)}
        return _Known(self.library, function, common)

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


# -- writing it -----------------------------------------------------------------------------------


@dataclass
class _Writer:
    """Writes a function down with nothing in it that is known beforehand."""

    library: _Library
    known: _Known
    dropped: Mapping[str, Collection[str]]  # parameters that other functions have no more
    unused: set[str] = field(default_factory=set)  # local names that nothing reads

    def written_class(self, node: ast.ClassDef) -> str:
        head = self.library.between(_start(node), (node.body[0].lineno - 1, MANY))
        return "\n".join([head, *self.block(node.body, INDENT)])

    def written(self, kept: Collection[str] | None) -> tuple[str, frozenset[str]]:
        """The source, and the parameters that it has no more.

        Args:
            kept: parameters that calls from outside pass, which stay; None keeps all.
        """
        function = self.known.function
        assert isinstance(function, ast.FunctionDef)
        while True:
            body = self.block(function.body, INDENT)
            read = _read(body)
            bound = set(map(self._bound, self.known.live(function.body))) - {""}
            unused = bound - read - self.unused
            if not unused:
                break
            self.unused |= unused
        parameters = _parameters(function)
        drop = frozenset(n for n in parameters if n not in read)
        drop = frozenset() if kept is None else drop - set(kept)
        lines = [*self._head(function, drop), *_docstring(body, drop)]
        return "\n".join(lines), drop

    def _bound(self, statement: ast.stmt) -> str:
        """The name that a statement binds, and does nothing else."""
        if isinstance(statement, ast.FunctionDef):
            return statement.name
        name, value = _assigned(statement)
        if value is None or self.known.constant(value) is not None:
            return name
        called = {last_part(n.func) for n in walk(value) if isinstance(n, ast.Call)}
        return name if called <= ASKING else ""

    def _head(self, function: ast.FunctionDef, drop: Collection[str]) -> list[str]:
        first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
        source = self.library.lines[first - 1 : function.body[0].lineno - 1]
        if not drop:
            return source
        given = function.args
        kept: list[str] = []
        for each in (*given.posonlyargs, *given.args):
            kept.append(self._parameter(function, each))
        if given.vararg is not None:
            kept.append("*" + self.library.segment(given.vararg))
        elif any(p.arg not in drop for p in given.kwonlyargs):
            kept.append("*")
        kept += [self._parameter(function, p) for p in given.kwonlyargs]
        if given.kwarg is not None:
            kept.append("**" + self.library.segment(given.kwarg))
        listed = [p for p in kept if re.split(r"[:=]", p)[0].strip() not in drop]
        returns = f" -> {self.library.segment(function.returns)}" if function.returns else ""
        decorators = self.library.lines[first - 1 : function.lineno - 1]
        line = f"def {function.name}({', '.join(listed)}){returns}:"
        return [*decorators, *_wrapped(line)]

    def _parameter(self, function: ast.FunctionDef, parameter: ast.arg) -> str:
        default = _parameters(function)[parameter.arg]
        text = self.library.segment(parameter)
        return text if default is None else f"{text} = {self.library.segment(default)}"

    # Statements.

    def block(self, body: Sequence[ast.stmt], indent: str) -> list[str]:
        """The lines of statements that may run, with the comments above them."""
        lines: list[str] = []
        whole = True
        parted = False  # by a blank line, above something that is gone
        for index, statement in enumerate(body):
            above = self._above(statement, body[index - 1] if index else None, indent)
            new = self.statement(statement, indent)
            if not new:
                parted = parted or "" in above
                whole = False
                continue
            lines += ["", *above, *new] if parted and "" not in above else [*above, *new]
            parted = False
            if isinstance(statement, ast.If) and self.known.truth(statement.test) is not None:
                taken = self.known.truth(statement.test)
                if _ends(statement.body if taken else statement.orelse):
                    break
        while lines and not whole and not lines[0].strip():
            lines.pop(0)
        return lines

    def _above(self, statement: ast.stmt, before: ast.stmt | None, indent: str) -> list[str]:
        """Comments and blank lines between a statement and the one before it."""
        decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
        at = min([statement.lineno, *(d.lineno for d in decorators)]) - 1
        first = at
        while first and re.match(r"\s*(#|$)", self.library.lines[first - 1]):
            first -= 1
        if before is not None:
            first = max(first, before.end_lineno or 0)
        lines = [line.strip() for line in self.library.lines[first:at]]
        return [indent + line if line else "" for line in lines]

    def statement(self, node: ast.stmt, indent: str) -> list[str]:
        if isinstance(node, ast.If):
            return self._branches(node, indent, "if")
        target, value = _assigned(node)
        if isinstance(node, ast.FunctionDef):
            target = node.name
        if target in self.unused or (target and target in self.known.names and value is not None):
            return []
        if isinstance(node, ast.For) and self.known.constant(node.iter) in EMPTY:
            return []
        if self.known.does_nothing(node):
            return []
        if isinstance(node, (ast.For, ast.While, ast.With, ast.FunctionDef)):
            inner = self.block(node.body, indent + INDENT)
            return [*self._line(node, indent, node.body[0]), *inner] if inner else []
        if isinstance(node, ast.Try):
            tried = [f"{indent}try:", *self.block(node.body, indent + INDENT)]
            final = self.block(node.finalbody, indent + INDENT)
            return [*tried, f"{indent}finally:", *final]
        return self._line(node, indent)

    def _branches(self, node: ast.If, indent: str, word: str) -> list[str]:
        truth = self.known.truth(node.test)
        inner = indent + INDENT
        if truth is not None:
            taken = node.body if truth else node.orelse
            if word == "if":
                return self.block(taken, indent) if taken else []
            if not taken:
                return []
            if not truth and self._is_elif(node):
                return self._branches(_if(node.orelse[0]), indent, "elif")
            return [f"{indent}else:", *self.block(taken, inner)]
        body = self.block(node.body, inner)
        rest: list[str] = []
        if node.orelse and self._is_elif(node):
            rest = self._branches(_if(node.orelse[0]), indent, "elif")
        elif node.orelse:
            rest = self.block(node.orelse, inner)
            rest = [f"{indent}else:", *rest] if rest else []
        if not body and not rest:
            return []
        return [*self._line(node, indent, node.body[0], word), *(body or [f"{inner}pass"]), *rest]

    def _is_elif(self, node: ast.If) -> bool:
        other = node.orelse[0] if node.orelse else None
        return isinstance(other, ast.If) and self.library.lines[
            other.lineno - 1
        ].lstrip().startswith("elif")

    def _line(
        self, node: ast.stmt, indent: str, body: ast.stmt | None = None, word: str = ""
    ) -> list[str]:
        """A statement without its blocks; as it stands in the library if nothing in it changes."""
        end = (node.end_lineno or 0, node.end_col_offset or 0)
        if body is not None:
            last = body.lineno - 1
            while re.match(r"\s*(#|$)", self.library.lines[last - 1]):
                last -= 1
            end = (last, len(self.library.lines[last - 1].partition("  #")[0]))
        start = (node.lineno, node.col_offset)
        inside = [child for child in _placed(node) if not isinstance(child, ast.stmt)]
        old = self.library.between(start, end)
        new = self._spliced(inside, start, end)
        comment = self.library.lines[end[0] - 1][end[1] :]
        if word == "if" and old.startswith("elif"):
            new = new[2:]
        if new == old:
            shift = len(indent) - node.col_offset
            moved = [_shifted(line, shift) for line in (old + comment).split("\n")[1:]]
            return [indent + (old + comment).split("\n")[0], *moved]
        lines = _wrapped(_joined(new), indent)
        lines[-1] += comment
        return lines

    # Expressions.

    def text(self, node: ast.AST) -> str:
        """The source of an expression without what is known."""
        if isinstance(node, ast.expr) and not isinstance(node, ast.Constant):
            loaded = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
            constant = self.known.constant(node) if loaded else None
            names = {n.id for n in walk(node) if isinstance(n, ast.Name)}
            if constant is not None and not names <= {"set", "frozenset"}:
                return constant
        match node:
            case ast.IfExp() if self.known.chosen(node) is not node:
                return self._inner(self.known.chosen(node))
            case ast.BoolOp() if self.known.operands(node) != node.values:
                word = " or " if isinstance(node.op, ast.Or) else " and "
                return word.join(map(self._inner, self.known.operands(node)))
            case ast.Dict() if any(k is None and self._gone(v) for k, v in _items(node)):
                kept = [(k, v) for k, v in _items(node) if k is not None or not self._gone(v)]
                if len(kept) == 1 and kept[0][0] is None:
                    return self.text(kept[0][1])
                parts = [
                    f"{self.text(k)}: {self.text(v)}" if k is not None else f"**{self.text(v)}"
                    for k, v in kept
                ]
                return "{" + ", ".join(parts) + "}"
            case ast.Call(func=ast.Name(id=name)) if self.dropped.get(name):
                return self._call(node)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                if any(map(self.known.truth, (c for g in node.generators for c in g.ifs))):
                    return self._comprehension(node)
        start, end = _span(node)
        return self._spliced(_placed(node), start, end)

    def _comprehension(self, node: Comprehension) -> str:
        whole = self.library.segment(node)
        if isinstance(node, ast.DictComp):
            text = f"{self.text(node.key)}: {self.text(node.value)}"
        else:
            text = self.text(node.elt)
        for each in node.generators:
            text += f" for {self.text(each.target)} in {self.text(each.iter)}"
            text += "".join(f" if {self.text(c)}" for c in each.ifs if not self.known.truth(c))
        return whole[0] + text + whole[-1]

    def _inner(self, node: ast.expr) -> str:
        """An expression where another one stood, in brackets if those around might take a part."""
        text = self.text(node)
        kept = self.known.operands(node) if isinstance(node, ast.BoolOp) else [node]
        loose = isinstance(node, (ast.IfExp, ast.BoolOp, ast.Lambda)) and len(kept) > 1
        return f"({text})" if loose else text

    def _gone(self, node: ast.expr) -> bool:
        return self.known.constant(node) in EMPTY

    def _call(self, call: ast.Call) -> str:
        function = self.library.definitions[of_name(call.func)]
        assert isinstance(function, ast.FunctionDef)
        gone = self.dropped[function.name]
        names = list(_parameters(function))
        given = [self.text(a) for n, a in zip(names, call.args, strict=False) if n not in gone]
        for keyword in call.keywords:
            if keyword.arg is None:
                given.append(f"**{self.text(keyword.value)}")
            elif keyword.arg not in gone:
                given.append(f"{keyword.arg}={self.text(keyword.value)}")
        return f"{function.name}({', '.join(given)})"

    def _spliced(
        self, inside: Iterable[ast.AST], start: tuple[int, int], end: tuple[int, int]
    ) -> str:
        """The source from a place to another, with the new text of what stands in it."""
        text, at = "", start
        for node in sorted(inside, key=_span):
            first, last = _span(node)
            if first < at:
                continue
            text += self.library.between(at, first) + self.text(node)
            at = last
        return text + self.library.between(at, end)


def _start(node: ast.AST) -> tuple[int, int]:
    """Where a node starts, a definition with its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    start = _span(node)[0]
    first = min([start[0], *(d.lineno for d in decorators)])
    return start if first == start[0] else (first, 0)


def _placed(node: ast.AST) -> Iterator[ast.AST]:
    """What is directly in a node and has a place in the source."""
    for child in ast.iter_child_nodes(node):
        if hasattr(child, "lineno"):
            yield child
        else:
            yield from _placed(child)


def of_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _if(node: ast.stmt) -> ast.If:
    assert isinstance(node, ast.If)
    return node


def _span(node: ast.AST) -> tuple[tuple[int, int], tuple[int, int]]:
    start = (node.lineno, node.col_offset)  # type: ignore[attr-defined]
    return start, (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]


def _items(node: ast.Dict) -> list[tuple[ast.expr | None, ast.expr]]:
    return list(zip(node.keys, node.values, strict=True))


def _read(lines: Sequence[str]) -> set[str]:
    """The names that the body of a function reads."""
    tree = ast.parse("if True:\n" + "\n".join(lines))
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _docstring(body: Sequence[str], drop: Collection[str]) -> list[str]:
    """A body whose docstring says nothing of parameters that are gone, nor of errors."""
    text = "\n".join(body)
    for name in drop:
        text = re.sub(rf"\n {{8}}{name}: .*(\n {{12}}.*)*", "", text, count=1)
    for error in re.findall(r"\n {8}(\w*Error): ", text):
        if f"raise {error}" not in text:
            text = re.sub(rf"\n {{8}}{error}: .*(\n {{12}}.*)*", "", text, count=1)
    text = re.sub(r"\n\n {4}(Args|Raises):(?=\n(\n|    \"\"\"))", "", text)
    text = re.sub(r'^( {4}""".*)\n {4}"""', r'\1"""', text)
    return text.split("\n")


def _shifted(line: str, by: int) -> str:
    return line if not by or not line else (" " * by + line if by > 0 else line[-by:])


def _joined(text: str) -> str:
    """A statement on one line."""
    text = re.sub(r"\s*\n\s*", " ", text)
    return re.sub(r",? ([)\]}])", r"\1", re.sub(r"([(\[{]) ", r"\1", text))


def _wrapped(line: str, indent: str = "") -> list[str]:
    """A statement on as many lines as it needs, laid out as black does it."""
    if len(indent + line) <= WIDTH:
        return [indent + line]
    opened: list[int] = []
    pairs: list[tuple[int, int]] = []
    for at, character in enumerate(line):
        if character in "([{":
            opened.append(at)
        elif character in ")]}":
            start = opened.pop()
            if not opened:
                pairs.append((start, at))
    if not pairs:
        return [indent + line]
    start, end = max(pairs, key=lambda pair: pair[1] - pair[0])
    inner, inside = indent + INDENT, line[start + 1 : end]
    if len(inner + inside) <= WIDTH:
        middle = [inner + inside]
    else:
        middle = [part for each in _parts(inside) for part in _wrapped(f"{each},", inner)]
    return [indent + line[: start + 1], *middle, indent + line[end:]]


def _parts(text: str) -> list[str]:
    """What commas part, outside of brackets."""
    found, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            found.append("")
        else:
            found[-1] += character
    return [part.strip() for part in found if part.strip()]
