"""What one way through a function knows of the conditions that it has passed.

Two conditions that read alike have one answer as long as nothing in between can change it. What
calls a clock, or a function that is not known to only look, may have another answer each time.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Function
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.trees import FUNCTIONS, split_path, walk

Facts = frozenset[tuple[str, bool]]  # a condition's text, and whether it holds
CHANGING = re.compile(r"rand|time|clock|now|next|pop|input")  # what answers anew each time
OPPOSITE = {ast.NotEq: ast.Eq, ast.IsNot: ast.Is, ast.NotIn: ast.In}
DEPTH = 3  # functions that a condition asks


class Conditions:
    """The conditions of one function, and what changes their answers."""

    def __init__(self, function: ast.AST, module: Module, study: Study) -> None:
        self.function, self.module, self.study = function, module, study
        tests = [test for node in walk(function) for test in _tests(node)]
        texts = Counter(ast.unparse(part) for test in tests for part in _parts(test))
        # What is asked once tells nothing of another place.
        self.tests = {
            text: part
            for test in tests
            for part in _parts(test)
            if texts[text := ast.unparse(part)] > 1 and self._stays(part)
        }

    def assume(self, facts: Facts, test: ast.expr, *, holds: bool) -> Facts | None:
        """What is known where a condition holds or not; None where that cannot be."""
        match test:
            case ast.Constant(value=value):
                return facts if bool(value) is holds else None
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.assume(facts, operand, holds=not holds)
            case ast.BoolOp(op=op, values=parts) if isinstance(op, ast.And) is holds:
                known: Facts | None = facts
                for part in parts:
                    known = None if known is None else self.assume(known, part, holds=holds)
                return known
            case ast.BoolOp(values=parts):
                # One of them must be so.
                every = [self.assume(facts, part, holds=holds) for part in parts]
                return facts if any(each is not None for each in every) else None
        asked, turned = _turned(test)
        text, holds = ast.unparse(asked), holds is not turned
        if (text, not holds) in facts:
            return None
        return facts | {(text, holds)} if text in self.tests else facts

    def after(self, facts: Facts, node: ast.AST) -> Facts:
        """What is still known behind a call, or where a name, attribute or item is set."""
        return frozenset(f for f in facts if not self._may_change(self.tests[f[0]], node))

    def _may_change(self, test: ast.expr, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            root, _ = split_path(_without_items(node))
            if root is None:
                return True
            if root is node or not isinstance(node, ast.Attribute):
                return any(isinstance(n, ast.Name) and n.id == root.id for n in walk(test))
            return any(isinstance(n, ast.Attribute) and n.attr == node.attr for n in walk(test))
        if self.study.external(node.func, self.module):
            return False
        receiver = getattr(node.func, "value", None)
        held = receiver.id if isinstance(receiver, ast.Name) else None
        for part in walk(test):
            if isinstance(part, ast.Attribute) and self._is_set_elsewhere(part.attr):
                return True
            if not isinstance(part, ast.Name):
                continue
            around = self.module.table.parents[part]
            if part.id == held and not isinstance(around, ast.Attribute):
                return True  # losses.append(loss)
            if self._is_bound_elsewhere(part):
                return True
        return False

    def _is_set_elsewhere(self, name: str) -> bool:
        """Whether another function, which a call may lead to, sets attributes of that name."""
        setters = self.study.cache(_setters).get(name, set())
        return bool(setters - {self.function})

    def _is_bound_elsewhere(self, name: ast.Name) -> bool:
        """Whether another function binds a name of a scope around it."""
        table = self.module.table
        scope = table.scope_of(name).lookup(name.id)
        bindings = scope.bindings[name.id] if scope is not None else []
        around = {enclosing_function(self.module, each.node) for each in bindings}
        return bool(around - {self.function, self.module.source.tree, scope and scope.node})

    def _stays(self, test: ast.expr) -> bool:
        """Whether a condition has the same answer as long as what it reads is not changed."""
        return all(
            not isinstance(node, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom))
            and (not isinstance(node, ast.Call) or _only_looks(node, self.module, self.study))
            for node in walk(test)
        )


def _tests(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield node.test
    elif isinstance(node, ast.BoolOp):
        yield from node.values
    elif isinstance(node, ast.Match):
        yield from (test for case in node.cases if (test := matched(node, case)) is not None)


def matched(node: ast.Match, case: ast.match_case) -> ast.expr | None:
    """The condition under which a case is taken whose pattern is a value."""
    if not isinstance(case.pattern, ast.MatchValue):
        return None
    return ast.Compare(node.subject, [ast.Eq()], [case.pattern.value])


def _parts(test: ast.expr) -> Iterator[ast.expr]:
    """The conditions that ``not``, ``and`` and ``or`` join in a test."""
    match test:
        case ast.BoolOp(values=values):
            for value in values:
                yield from _parts(value)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _parts(operand)
        case _:
            yield _turned(test)[0]


def _turned(test: ast.expr) -> tuple[ast.expr, bool]:
    """``rank == 0`` of ``rank != 0``, and whether it says the opposite."""
    match test:
        case ast.Compare(left=left, ops=[op], comparators=others) if type(op) in OPPOSITE:
            return ast.Compare(left, [OPPOSITE[type(op)]()], others), True
    return test, False


def _without_items(node: ast.AST) -> ast.expr:
    while isinstance(node, (ast.Subscript, ast.Starred)):
        node = node.value
    assert isinstance(node, ast.expr)
    return node


def _only_looks(call: ast.Call, module: Module, study: Study, depth: int = DEPTH) -> bool:
    """Whether a call changes nothing, and gives the same as long as nothing changes."""
    external = study.external(call.func, module)
    if external:
        return not any(CHANGING.search(name) for name in external)
    functions = study.values(call.func, module)
    return bool(functions and depth) and all(
        isinstance(each, Function) and _is_plain(each, study, depth - 1) for each in functions
    )


def _is_plain(function: Function, study: Study, depth: int) -> bool:
    for node in walk(function.node):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            return False
        if isinstance(node, (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom)):
            return False
        if isinstance(node, ast.Call) and not _only_looks(node, function.module, study, depth):
            return False
    return True


def _setters(study: Study) -> dict[str, set[ast.AST]]:
    """The functions that set attributes of a name, except where objects are made."""
    found: dict[str, set[ast.AST]] = {}
    for module in study.project.modules:
        for node in module.table.attributes:
            if isinstance(node.ctx, ast.Load):
                continue
            function = enclosing_function(module, node)
            if isinstance(function, FUNCTIONS) and getattr(function, "name", "") != "__init__":
                found.setdefault(node.attr, set()).add(function)
    return found
