"""Whether what a name holds may be used after the next training step.

The question is asked of every way through the function: a value is new where it is assigned, old
behind a step, a load of other values or a ``yield``, and gone where the name gets another one.
Branches, loops and what leaves them are followed as they run, as often as something changes. Two
places that stand under the same condition are met in the same round (:mod:`.round_conditions`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from enum import IntEnum

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.checkpoints.round_conditions import Conditions, Facts, matched
from fsdp_migrate.families.checkpoints.training_calls import (
    changes_parameters,
    leads_to_training,
    training_calls,
)
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.trees import DEFINITIONS, FUNCTIONS, children, walk

MOST = 64  # ways that are told apart by what they know


class Held(IntEnum):
    """What the name holds on a way through the function."""

    OTHER = 0
    NEW = 1
    OLD = 2  # a training step was made since


Way = tuple[Held, Facts]
Ways = frozenset[Way]
NOWHERE: Ways = frozenset()


class LaterUses:
    """Follows what one name is given at ``origin``, a statement or the function that takes it.

    Args:
        uses: the places that read the name.
        stores: the places that give it another value.
        adds: what is assigned joins what is there: ``states[step] = state``.
    """

    def __init__(
        self,
        origin: ast.AST,
        uses: Iterable[ast.Name],
        stores: Iterable[ast.Name],
        function: ast.AST,
        module: Module,
        study: Study,
        *,
        adds: bool = False,
    ) -> None:
        self.origin, self.function, self.adds = origin, function, adds
        self.uses, self.stores = set(uses), set(stores)
        self.module, self.study = module, study
        self.conditions = Conditions(function, module, study)
        self.named = set(training_calls(function))
        self.old: set[ast.Name] = set()  # the uses that may read it after a step
        self.breaks: list[Ways] = []
        self.continues: list[Ways] = []
        self.raised: list[Ways] = []

    def found(self) -> set[ast.Name]:
        """The uses that may read the value after a training step."""
        start = Held.NEW if self.origin is self.function else Held.OTHER
        body = getattr(self.function, "body", [])
        if isinstance(body, list):
            self.block(body, frozenset({(start, frozenset())}))
        return self.old

    def block(self, body: list[ast.stmt], ways: Ways) -> Ways:
        """The ways that come out of a block."""
        for statement in body:
            if self.raised:
                self.raised[-1] |= ways
            ways = self.statement(statement, ways)
        return ways

    def statement(self, node: ast.stmt, ways: Ways) -> Ways:
        match node:
            case ast.If():
                ways = self.run(node.test, ways)
                yes = self.block(node.body, self.where(ways, node.test, holds=True))
                return yes | self.block(node.orelse, self.where(ways, node.test, holds=False))
            case ast.For() | ast.AsyncFor() | ast.While():
                return self.loop(node, ways)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    ways = self.run(item, ways)
                if any("suppress" in ast.unparse(item.context_expr) for item in node.items):
                    self.raised.append(ways)
                    return self.block(node.body, ways) | self.pop_raised()
                return self.block(node.body, ways)
            case ast.Try() | ast.TryStar():
                return self.attempt(node, ways)
            case ast.Match():
                return self.match(node, ways)
            case ast.Break():
                self.breaks[-1] |= ways
                return NOWHERE
            case ast.Continue():
                self.continues[-1] |= ways
                return NOWHERE
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return ways
        ways = self.run(node, ways)
        if self.raised:
            self.raised[-1] |= ways
        return NOWHERE if isinstance(node, (ast.Return, ast.Raise)) else ways

    def loop(self, node: ast.For | ast.AsyncFor | ast.While, ways: Ways) -> Ways:
        if not isinstance(node, ast.While):
            ways = self.run(node.iter, ways)
        head, known = _without_facts(ways), NOWHERE
        self.breaks.append(NOWHERE)
        while head != known:  # another round may bring another way to its beginning
            known = head
            if isinstance(node, ast.While):
                inner = self.where(self.run(node.test, head), node.test, holds=True)
            else:
                inner = self.run(node.target, head)
            self.continues.append(NOWHERE)
            after = self.block(node.body, inner) | self.continues.pop()
            head |= _without_facts(after)
        done = head
        if isinstance(node, ast.While):
            done = self.where(self.run(node.test, head), node.test, holds=False)
        done = self.block(node.orelse, done)
        return done | self.breaks.pop()

    def attempt(self, node: ast.Try | ast.TryStar, ways: Ways) -> Ways:
        self.raised.append(ways)
        done = self.block(node.body, ways)
        start = self.pop_raised()
        done = self.block(node.orelse, done)
        every = [self.block(handler.body, start) for handler in node.handlers]
        done = done.union(*every)
        if not node.finalbody:
            return done
        self.block(node.finalbody, start.union(done))
        return self.block(node.finalbody, done)

    def pop_raised(self) -> Ways:
        """The ways on which something in a block may have gone wrong, which others may as well."""
        found = self.raised.pop()
        if self.raised:
            self.raised[-1] |= found
        return found

    def match(self, node: ast.Match, ways: Ways) -> Ways:
        passed, result = self.run(node.subject, ways), NOWHERE
        for case in node.cases:
            test = matched(node, case)
            taken = passed if test is None else self.where(passed, test, holds=True)
            if case.guard is not None:
                taken = self.where(self.run(case.guard, taken), case.guard, holds=True)
            elif test is not None:
                passed = self.where(passed, test, holds=False)
            result |= self.block(case.body, taken)
            if case.guard is None and isinstance(case.pattern, ast.MatchAs):
                passed = passed if case.pattern.pattern is not None else NOWHERE
        return result | passed

    def where(self, ways: Ways, test: ast.expr, *, holds: bool) -> Ways:
        """Those of the ways on which a condition can hold, or not."""
        known = ((held, self.conditions.assume(f, test, holds=holds)) for held, f in ways)
        return _few(frozenset((held, facts) for held, facts in known if facts is not None))

    def run(self, node: ast.AST, ways: Ways) -> Ways:
        """What is true behind an expression or a simple statement."""
        parts = sorted(evaluated(node), key=_end)
        for part in parts:
            if isinstance(part, ast.Name) and part in self.uses:
                self.use(part, ways)
            elif isinstance(part, (ast.Call, ast.Yield, ast.YieldFrom)):
                trains = self.changes(part)
                ways = frozenset(
                    (Held.OLD if trains and held else held, self.conditions.after(facts, part))
                    for held, facts in ways
                )
        stored = [n for n in parts if isinstance(getattr(n, "ctx", None), (ast.Store, ast.Del))]
        for part in stored:
            ways = frozenset((held, self.conditions.after(facts, part)) for held, facts in ways)
        if node is self.origin:
            return self.given(node, ways)
        if self.origin in parts:  # a walrus
            new = frozenset((Held.NEW, facts) for _, facts in ways)
            passed = any(isinstance(part, (ast.BoolOp, ast.IfExp)) for part in parts)
            return new | ways if passed else new
        if not self.stores.isdisjoint(stored) and not isinstance(node, ast.AugAssign):
            return frozenset((Held.OTHER, facts) for _, facts in ways)
        return ways

    def changes(self, node: ast.Call | ast.Yield | ast.YieldFrom) -> bool:
        """Whether parameters may be others behind a call, or behind what lets others run: not if
        the very value is loaded."""
        if not isinstance(node, ast.Call):
            return True
        if node in self.named or leads_to_training(node, self.module, self.study):
            return True
        given = any(part in self.uses for part in walk(node))
        return not given and changes_parameters(node, self.module, self.study)

    def given(self, node: ast.AST, ways: Ways) -> Ways:
        """What the name holds behind the statement that gives it the value."""
        new = frozenset((Held.NEW, facts) for _, facts in ways)
        value = getattr(node, "value", None)
        keeps = value is not None and any(each in self.uses for each in walk(value))
        return new | ways if self.adds or keeps else new

    def use(self, node: ast.Name, ways: Ways) -> None:
        """Note a use, if it may read what is old where the conditions in its statement hold."""
        child: ast.AST = node
        for parent in self.module.table.ancestors(node):
            if isinstance(parent, ast.stmt):
                break
            match parent:
                case ast.IfExp() if child is not parent.test:
                    ways = self.where(ways, parent.test, holds=child is parent.body)
                case ast.BoolOp(op=op, values=values):
                    for value in values:
                        if value is child:
                            break
                        ways = self.where(ways, value, holds=isinstance(op, ast.And))
            child = parent
        if any(held is Held.OLD for held, _ in ways):
            self.old.add(node)


def evaluated(node: ast.AST) -> list[ast.expr]:
    """The expressions that are run with a node: nothing in functions and lambdas."""
    found = [node]
    for each in found:  # which grows meanwhile
        if not isinstance(each, (*FUNCTIONS, *DEFINITIONS)):
            found += children(each)
    return [each for each in found if isinstance(each, ast.expr)]


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0


def _without_facts(ways: Ways) -> Ways:
    """Every round asks its conditions anew."""
    return frozenset((held, frozenset()) for held, _ in ways)


def _few(ways: Ways) -> Ways:
    return ways if len(ways) <= MOST else _without_facts(ways)
