"""Under which ``isinstance`` tests a path is used.

Patterns of classes (``case FSDP() | DDP():``) are such tests, and calls that may ask no more than
that are noted as well. They are those of branches around
the use, of earlier branches that did not come back, and of
the other parts of its condition. What is known stands in the environment, under :data:`TESTED` and
the path.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import TESTED, Definition, Environment, Flow, Test, access_path
from fsdp_migrate.syntax.scopes import Kind

Assumed = dict[str, frozenset[Definition] | None]


class IsinstanceTests:
    """The tests that hold where the run over a scope has come to."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.asked: set[str] = set()  # paths that there are tests of
        self._tests: dict[tuple[int, bool, bool], Test] = {}

    def implied_by(self, test: ast.expr, env: Environment, *, holds: bool) -> Environment:
        """What is known of paths where a condition holds, or does not."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.implied_by(operand, env, holds=not holds)
            case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) is holds:
                found: Environment = {}
                for value in values:
                    for key, tests in self.implied_by(value, env, holds=holds).items():
                        found[key] = found.get(key, tests) | tests
                return found
            case ast.Name(id=name):
                return self._told_by(name, env, holds)
        asked = _asked(test)
        path = access_path(asked) if asked is not None else None
        return {} if path is None else self._known(path, test, env, holds, crossed=False)

    def matched(
        self, subject: ast.expr, pattern: ast.pattern, env: Environment, *, holds: bool
    ) -> Environment:
        """What is known of paths where a subject matches a pattern, or does not."""
        found: Environment = {}
        match subject, pattern:
            case ast.Tuple(elts=parts), ast.MatchSequence(patterns=patterns) if holds:
                if len(parts) == len(patterns) and ast.MatchStar not in map(type, patterns):
                    for part, each in zip(parts, patterns, strict=True):
                        found |= self.matched(part, each, env, holds=True)
                return found
        path = access_path(subject)
        if path is not None and _asks_class(pattern):
            found |= self._known(path, pattern, env, holds, crossed=False)
        for capture in _captures(pattern) if holds else ():
            if capture.name and capture.pattern and _asks_class(capture.pattern):
                found |= self._known(capture.name, capture.pattern, env, holds, crossed=False)
        return found

    def _told_by(self, name: str, env: Environment, holds: bool) -> Environment:
        """What a name tells that was assigned a test: ``is_sharded = isinstance(model, FSDP)``."""
        match list(env.get(name, ())):
            case [
                Definition(
                    kind=Kind.ASSIGN,
                    value=ast.Call() as test,
                    unpack=(),
                )
            ] if (asked := _asked(test)) is not None:
                path = access_path(asked)
                same = path is not None and self.flow.reaching.get(asked) == env.get(path)
                if path is not None and same:
                    return self._known(path, test, env, holds, crossed=True)
        return {}

    def _known(
        self, path: str, test: ast.AST, env: Environment, holds: bool, *, crossed: bool
    ) -> Environment:
        made = self._made(Test(path, Kind.OTHER, test, holds=holds, crossed=crossed))
        key = TESTED + path
        self.asked.add(path)
        return {key: env.get(key, frozenset()) | {made}}

    def _made(self, wanted: Test) -> Test:
        """One object for equal tests, so that sets of them compare."""
        return self._tests.setdefault((id(wanted.node), wanted.holds, wanted.crossed), wanted)

    def share(self, name: str, subject: ast.expr, env: Environment) -> None:
        """Give a name for all of a subject the tests that the subject has passed."""
        known = env.get(TESTED + (access_path(subject) or ""))
        if known:
            self.asked.add(name)
            env[TESTED + name] = known

    def note(self, node: ast.AST, path: str, env: Environment) -> None:
        """Record the tests that a use of a path stands under."""
        known = self.flow.tests.get(node)
        found = env.get(TESTED + path, frozenset())
        if known is not None:  # the second pass through a loop
            found = common_tests(known, found)
        if found or known is not None:
            self.flow.tests[node] = frozenset(t for t in found if isinstance(t, Test))

    @staticmethod
    def assume(tests: Environment, env: Environment) -> Assumed:
        """Take tests for true, and return what was known of their paths before."""
        before = {key: env.get(key) for key in tests}
        env.update(tests)
        return before

    @staticmethod
    def restore(before: Assumed, env: Environment) -> None:
        """Undo :meth:`assume`."""
        for key, known in before.items():
            if key in env:  # else the path was assigned
                del env[key]
                env.update({key: known} if known is not None else {})

    def forget(self, path: str, env: Environment) -> None:
        """Forget the tests of a path that is assigned, and of what is reached through it."""
        for asked in self.asked:
            if asked == path or asked.startswith((f"{path}.", f"{path}[")):
                env.pop(TESTED + asked, None)

    def cross(self, root: str, env: Environment) -> None:
        """Mark the tests of what is reached through a name: a call that got it may assign that."""
        for asked in self.asked:
            key = TESTED + asked
            if key in env and asked.startswith((f"{root}.", f"{root}[")):
                env[key] = frozenset(
                    self._made(Test(t.path, t.kind, t.node, holds=t.holds, crossed=True))
                    for t in env[key]
                    if isinstance(t, Test)
                )


def _asked(test: ast.expr) -> ast.expr | None:
    """What ``isinstance(m, C)`` asks about, or a function that may do so, ``is_sharded(m)``."""
    match test:
        case ast.Call(func=ast.Name(id="isinstance"), args=[asked, _], keywords=[]):
            return asked
        case ast.Call(func=ast.Name(id=name), args=[asked], keywords=[]):
            return None if hasattr(builtins, name) else asked
        case ast.Call(func=ast.Attribute(), args=[asked], keywords=[]):
            return asked
    return None


def alternatives(pattern: ast.pattern) -> list[ast.pattern]:
    """``A()`` and ``B()`` of ``A() | B() as name``."""
    match pattern:
        case ast.MatchAs(pattern=ast.pattern() as inner):
            return alternatives(inner)
        case ast.MatchOr(patterns=patterns):
            return [each for part in patterns for each in alternatives(part)]
    return [pattern]


def _asks_class(pattern: ast.pattern) -> bool:
    return any(isinstance(each, ast.MatchClass) for each in alternatives(pattern))


def _captures(pattern: ast.pattern) -> Iterator[ast.MatchAs]:
    """The names that a pattern gives to parts of what it matches, whichever way it does."""
    match pattern:
        case ast.MatchAs(pattern=inner):
            yield pattern
            inside = [inner] if inner is not None else []
        case ast.MatchSequence(patterns=inside) | ast.MatchMapping(patterns=inside):
            pass
        case ast.MatchClass(patterns=positional, kwd_patterns=named):
            inside = [*positional, *named]
        case _:
            inside = []
    for part in inside:
        yield from _captures(part)


def common_tests(
    first: frozenset[Definition], second: frozenset[Definition]
) -> frozenset[Definition]:
    """The tests that hold on both of two branches."""
    others = {(t.node, t.holds): t for t in second if isinstance(t, Test)}
    found: list[Definition] = []
    for test in first:
        other = others.get((test.node, test.holds)) if isinstance(test, Test) else None
        if other is not None:
            found.append(other if other.crossed else test)
    return frozenset(found)
