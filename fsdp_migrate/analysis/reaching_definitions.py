"""Reaching definitions inside one scope.

For every load of a name or of a dotted path (``self.model``, ``cfg.fsdp.strategy``,
``kwargs["mesh"]``) this answers which definitions may have produced the value: a forward
abstract interpretation over the statements of one scope, branches joined by union, loop bodies
run twice. Paths rooted in a name are followed so that ``self.model = wrap(self.model)`` is seen
in order; a call on the root (``self.setup()``) forgets them, because it may have changed them.

The same run tells under which ``isinstance`` tests of a path it is used: those of branches around
it, of earlier ones that did not come back, and of the other parts of its condition.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

from fsdp_migrate.analysis.flow import (
    ELSEWHERE,
    TESTED,
    Definition,
    Environment,
    Flow,
    Test,
    access_path,
)
from fsdp_migrate.syntax import guards
from fsdp_migrate.syntax.name_table import NameTable
from fsdp_migrate.syntax.scopes import Kind, Scope, watched
from fsdp_migrate.syntax.trees import COMPREHENSIONS, FUNCTIONS, NODE_FIELDS, children, walk

Assumed = dict[str, frozenset[Definition] | None]
OF_THEIR_OWN = frozenset({ast.Lambda, *COMPREHENSIONS, ast.BoolOp, ast.IfExp, ast.NamedExpr})


def analyse(scope: Scope, table: NameTable) -> Flow:
    """Run the analysis over the body of ``scope`` (a module, class, function or lambda)."""
    return _Interpreter(scope, table).run()


class _Interpreter:
    def __init__(self, scope: Scope, table: NameTable) -> None:
        self.scope = scope
        self.table = table
        self.flow = Flow()
        self.reaching = self.flow.reaching
        self.loops: list[tuple[list[Environment], list[Environment]]] = []  # (breaks, continues)
        self.made: dict[tuple[int, str, tuple[int, ...]], Definition] = {}
        self.exits: list[Environment] = []
        self.below: dict[str, list[str]] = defaultdict(list)  # path -> defined ones it begins
        self.tests: dict[tuple[int, bool, bool], Test] = {}
        self.asked: set[str] = set()  # paths that there are tests of
        self.watched = watched(scope)

    def run(self) -> Flow:
        node = self.scope.node
        env: Environment | None = {}
        if isinstance(node, FUNCTIONS):
            env = {
                name: frozenset({self.define(name, b.kind, b.node, b.value)})
                for name, bindings in self.scope.bindings.items()
                for b in bindings
                if b.kind is Kind.PARAMETER
            }
        if isinstance(node, ast.Lambda):
            self.load(node.body, env or {})
        elif isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            env = self.block(node.body, env)
        self.flow.final = self.merge([e for e in [env, *self.exits] if e is not None])
        return self.flow

    def define(
        self,
        path: str,
        kind: Kind,
        node: ast.AST,
        value: ast.expr | None = None,
        unpack: tuple[int, ...] = (),
    ) -> Definition:
        key = (id(node), path, unpack)
        found = self.made.get(key)
        if found is None:
            found = self.made[key] = Definition(path, kind, node, value, unpack)
            self.flow.definitions.append(found)
            if "." in path or "[" in path:
                for i, sign in enumerate(path):
                    if sign in ".[":
                        self.below[path[:i]].append(path)
        return found

    def merge(self, environments: Iterable[Environment]) -> Environment:
        """Union. A dotted path that one side does not know keeps its outside value there.

        Of tests what every side knows.
        """
        every = list(environments)
        result: Environment = dict(every[0]) if every else {}
        if len(every) < 2:
            return result
        for env in every[1:]:
            for path, definitions in env.items():
                known = result.get(path)
                if known is not definitions:  # as most are on either side
                    result[path] = definitions if known is None else known | definitions
        for key in [TESTED + path for path in self.asked]:
            sides = [env.get(key, frozenset()) for env in every]
            result[key] = reduce(_common, sides)
            if not result[key]:
                del result[key]
        for path in result if self.below else ():
            dotted = ("." in path or "[" in path) and path[0] != TESTED
            if dotted and any(path not in env for env in every):
                result[path] |= {ELSEWHERE}
        return result

    # -- statements -----------------------------------------------------------------------------

    def block(self, body: list[ast.stmt], env: Environment | None) -> Environment | None:
        for statement in body:
            # Unreachable code is still read, with what is known, so that every load has an answer.
            reachable = env is not None
            after = self.statement(statement, env if env is not None else {})
            env = after if reachable else None
        return env

    def statement(self, node: ast.stmt, env: Environment) -> Environment | None:
        """What is known behind a statement; None where it does not go on."""
        order = self.flow.order
        if node not in order:
            order[node] = len(order)
        kind = node.__class__
        if kind is ast.Expr:
            self.load(node.value, env)  # type: ignore[attr-defined]  # its class was compared
            return env
        run = _STATEMENTS.get(kind)
        if run is not None:
            return run(self, node, env)
        self.loads(node, env)
        return env

    def assign(self, node: ast.Assign, env: Environment) -> Environment:
        self.load(node.value, env)
        for target in node.targets:
            self.store(target, Kind.ASSIGN, node, node.value, env)
        return env

    def annotate(self, node: ast.AnnAssign, env: Environment) -> Environment:
        if node.value is not None:
            self.load(node.value, env)
            self.store(node.target, Kind.ASSIGN, node, node.value, env)
        return env

    def augment(self, node: ast.AugAssign, env: Environment) -> Environment:
        self.load(node.value, env)
        self.load(node.target, env)
        self.store(node.target, Kind.AUGMENT, node, None, env)
        return env

    def enter(self, node: ast.With | ast.AsyncWith, env: Environment) -> Environment | None:
        for item in node.items:
            self.load(item.context_expr, env)
            if item.optional_vars is not None:
                self.store(item.optional_vars, Kind.ENTER, node, item.context_expr, env)
        return self.block(node.body, env)

    def leave(self, node: ast.Return | ast.Raise, env: Environment) -> Environment | None:
        if isinstance(node, ast.Raise) and guards.read(node) is not None:
            return env  # what stands behind a guard of ours is read as if it ran
        self.loads(node, env)
        self.exits.append(env)
        return None

    def jump(self, node: ast.Break | ast.Continue, env: Environment) -> None:
        if self.loops:
            self.loops[-1][0 if isinstance(node, ast.Break) else 1].append(env)

    def make(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, env: Environment
    ) -> Environment:
        for child in self.evaluated_outside(node):
            self.load(child, env)
        if self.watched:
            self.watch(node, env)
        kind = Kind.CLASS if isinstance(node, ast.ClassDef) else Kind.FUNCTION
        self.untested(node.name, env)
        env[node.name] = frozenset({self.define(node.name, kind, node)})
        return env

    def bring_in(self, node: ast.Import | ast.ImportFrom, env: Environment) -> Environment:
        for alias in node.names:
            if alias.name != "*":
                name = alias.asname or (
                    alias.name.split(".")[0] if isinstance(node, ast.Import) else alias.name
                )
                self.untested(name, env)
                env[name] = frozenset({self.define(name, Kind.IMPORT, alias)})
        return env

    def insist(self, node: ast.Assert, env: Environment) -> Environment:
        self.loads(node, env)
        env.update(self.tested(node.test, env, holds=True))
        return env

    def delete(self, node: ast.Delete, env: Environment) -> Environment:
        for target in node.targets:
            path = access_path(target)
            if path is not None:
                known = self.flow.deleted.get(target, frozenset())
                self.flow.deleted[target] = known | env.get(path, frozenset())
                self.forget(path, env)
                self.untested(path, env)
                env[path] = frozenset({self.define(path, Kind.DELETE, node)})
        return env

    @staticmethod
    def evaluated_outside(
        node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef,
    ) -> list[ast.expr]:
        """Decorators, defaults, annotations and bases: evaluated where the definition stands."""
        outside = list(node.decorator_list)
        if isinstance(node, ast.ClassDef):
            return [*outside, *node.bases, *(k.value for k in node.keywords)]
        outside += [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
        return outside

    def branch(self, node: ast.If, env: Environment) -> Environment | None:
        self.load(node.test, env)
        yes = env | self.tested(node.test, env, holds=True)
        no = env | self.tested(node.test, env, holds=False)
        return self.join([self.block(node.body, yes), self.block(node.orelse, no)])

    def choose(self, node: ast.Match, env: Environment) -> Environment | None:
        self.load(node.subject, env)
        results: list[Environment | None] = [dict(env)]
        for case in node.cases:
            inner = dict(env)
            for part in walk(case.pattern):
                name = getattr(part, "name", None) or getattr(part, "rest", None)
                if name:
                    self.untested(name, inner)
                    inner[name] = frozenset({self.define(name, Kind.OTHER, part)})
            if case.guard is not None:
                self.load(case.guard, inner)
            results.append(self.block(case.body, inner))
        return self.join(results)

    def loop(
        self, node: ast.For | ast.AsyncFor | ast.While, env: Environment
    ) -> Environment | None:
        iterable = None if isinstance(node, ast.While) else node.iter
        if iterable is not None:
            self.load(iterable, env)
        entry: Environment = dict(env)
        breaks: list[Environment] = []
        before: Environment | None = None
        for _ in range(2):  # the second pass sees what the first one defined
            inner = dict(entry)
            if isinstance(node, ast.While):
                self.load(node.test, inner)
            else:
                self.store(node.target, Kind.ELEMENT, node, iterable, inner)
            if inner == before:
                break  # nothing that the body could see
            before = dict(inner)
            continues: list[Environment] = []
            self.loops.append((breaks, continues))
            after = self.block(node.body, inner)
            self.loops.pop()
            entry = self.merge([entry, *continues, *([after] if after is not None else [])])
        done = self.block(node.orelse, dict(entry))
        return self.join([done, *breaks])

    def attempt(self, node: ast.Try | ast.TryStar, env: Environment) -> Environment | None:
        done = self.block(node.body, dict(env))
        # Anything the body defined may or may not be there when a handler starts.
        seen = [dict(env), *([done] if done is not None else []), self.partial(node.body)]
        start = self.merge(seen)
        results = []
        if done is not None:
            results.append(self.block(node.orelse, done))
        for handler in node.handlers:
            inner = dict(start)
            if handler.type is not None:
                self.load(handler.type, inner)
            if handler.name:
                self.untested(handler.name, inner)
                inner[handler.name] = frozenset({self.define(handler.name, Kind.OTHER, handler)})
            results.append(self.block(handler.body, inner))
        joined = self.join(results)
        if not node.finalbody:
            return joined
        final = self.block(node.finalbody, dict(joined if joined is not None else start))
        return final if joined is not None else None

    def partial(self, body: list[ast.stmt]) -> Environment:
        inside = {n for statement in body for n in walk(statement)}
        result: Environment = {}
        for definition in self.flow.definitions:
            if definition.node in inside:
                known = result.get(definition.path, frozenset())
                result[definition.path] = known | {definition}
        return result

    def join(self, environments: list[Environment | None]) -> Environment | None:
        alive = [e for e in environments if e is not None]
        return self.merge(alive) if alive else None

    # -- expressions ----------------------------------------------------------------------------

    def loads(self, node: ast.stmt, env: Environment) -> None:
        for child in children(node):
            if isinstance(child, ast.expr):
                self.load(child, env)

    def load(self, node: ast.AST, env: Environment) -> None:
        """Record what reaches every path read in an expression, left to right."""
        kind = node.__class__
        if kind is ast.Name:
            self.used(node, node.id, env)  # type: ignore[attr-defined]  # its class was compared
            return
        if kind is ast.Constant:
            return
        if kind is ast.Attribute:
            self.load_dotted(node, env)  # type: ignore[arg-type]
            return
        if kind is ast.Subscript:
            path = access_path(node)  # type: ignore[arg-type]
            if path is not None:
                self.used(node, path, env)
        if kind in OF_THEIR_OWN:
            self.load_parts(node, env)
            return
        if kind is ast.Call:
            self.load(node.func, env)  # type: ignore[attr-defined]
            for argument in node.args:  # type: ignore[attr-defined]
                self.load(argument, env)
            for keyword in node.keywords:  # type: ignore[attr-defined]
                self.load(keyword.value, env)
            self.called(node, env)  # type: ignore[arg-type]
            return
        for name in NODE_FIELDS[kind]:
            value = getattr(node, name)
            if value.__class__ is list:
                for item in value:
                    if isinstance(item, ast.AST):
                        self.load(item, env)
            elif isinstance(value, ast.AST):
                self.load(value, env)

    def load_dotted(self, node: ast.Attribute, env: Environment) -> None:
        """As :meth:`load`, of ``a.b.c`` and what it begins with."""
        dotted: list[ast.Attribute] = [node]
        head = node.value
        while isinstance(head, ast.Attribute):
            dotted.append(head)
            head = head.value
        self.load(head, env)
        path = access_path(head)
        if path is not None:
            for each in reversed(dotted):
                path = f"{path}.{each.attr}"
                self.used(each, path, env)

    def used(self, node: ast.AST, path: str, env: Environment) -> None:
        found = env.get(path)
        if found:
            known = self.reaching.get(node)
            self.reaching[node] = found if known is None else known | found
        if self.tests:
            self.under_tests(node, path, env)

    def load_parts(self, node: ast.AST, env: Environment) -> None:
        """As :meth:`load`, of what has parts that are evaluated later, or not at all."""
        if isinstance(node, ast.Lambda):
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    self.load(default, env)
            self.watch(node, env)
            return  # its body runs later, in a scope of its own
        if isinstance(node, COMPREHENSIONS):
            self.load_comprehension(node, env)
            return
        if isinstance(node, ast.BoolOp):
            self.load_operands(node.values, isinstance(node.op, ast.And), env)
            return
        if isinstance(node, ast.IfExp):
            self.load(node.test, env)
            for part, holds in ((node.body, True), (node.orelse, False)):
                before = self.assume(self.tested(node.test, env, holds=holds), env)
                self.load(part, env)
                self.restore(before, env)
            return
        if isinstance(node, ast.NamedExpr):
            self.load(node.value, env)
            self.store(node.target, Kind.ASSIGN, node, node.value, env)

    def load_comprehension(self, node: ast.expr, env: Environment) -> None:
        assert isinstance(node, COMPREHENSIONS)
        inner = dict(env)
        for generator in node.generators:
            self.load(generator.iter, inner)
            self.store(generator.target, Kind.ELEMENT, generator, generator.iter, inner)
            for condition in generator.ifs:
                self.load(condition, inner)
                inner.update(self.tested(condition, inner, holds=True))
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for part in parts:
            self.load(part, inner)

    def watch(self, node: ast.AST, env: Environment) -> None:
        """Note what functions that are defined, or run, at ``node`` may meet of some names."""
        for name in self.watched:
            known = self.flow.at.get((node, name), frozenset())
            self.flow.at[node, name] = known | env.get(name, frozenset())

    def called(self, node: ast.Call, env: Environment) -> None:
        """``self.setup()`` and ``setup(self)`` may change ``self.anything``."""
        if self.watched:
            self.watch(node, env)
        roots = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        for argument in (*roots, *node.args):
            if isinstance(argument, ast.Name):
                self.forget(argument.id, env)
        if self.tests:
            given = (*roots, *node.args, *(k.value for k in node.keywords))
            for name in {a.id for a in given if isinstance(a, ast.Name)}:
                self.cross(name, env)

    def forget(self, path: str, env: Environment) -> None:
        for known in self.below.get(path, ()):
            env.pop(known, None)

    def store(
        self,
        target: ast.expr,
        kind: Kind,
        node: ast.AST,
        value: ast.expr | None,
        env: Environment,
        unpack: tuple[int, ...] = (),
    ) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for index, element in enumerate(target.elts):
                self.store(element, kind, node, value, env, (*unpack, index))
            return
        if isinstance(target, ast.Starred):
            self.store(target.value, Kind.OTHER, node, None, env)
            return
        if isinstance(target, (ast.Attribute, ast.Subscript)):
            self.load(target.value, env)
            if isinstance(target, ast.Subscript):
                self.load(target.slice, env)
        path = access_path(target)
        if path is None:
            return
        self.forget(path, env)
        if self.asked:
            self.untested(path, env)
        env[path] = frozenset({self.define(path, kind, node, value, unpack)})

    # -- tests ----------------------------------------------------------------------------------

    def tested(self, test: ast.expr, env: Environment, *, holds: bool) -> Environment:
        """What is known of paths where a condition holds, or does not."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.tested(operand, env, holds=not holds)
            case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) is holds:
                found: Environment = {}
                for value in values:
                    for key, tests in self.tested(value, env, holds=holds).items():
                        found[key] = found.get(key, tests) | tests
                return found
            case ast.Call(func=ast.Name(id="isinstance"), args=[asked, _], keywords=[]):
                path = access_path(asked)
                return {} if path is None else self.known(path, test, env, holds, crossed=False)
            case ast.Name(id=name):
                return self.told_by(name, env, holds)
        return {}

    def told_by(self, name: str, env: Environment, holds: bool) -> Environment:
        """As :meth:`tested`, for ``is_sharded = isinstance(model, FSDP)`` that is asked later."""
        match list(env.get(name, ())):
            case [
                Definition(
                    kind=Kind.ASSIGN,
                    value=ast.Call(
                        func=ast.Name(id="isinstance"), args=[asked, _], keywords=[]
                    ) as test,
                    unpack=(),
                )
            ]:
                path = access_path(asked)
                same = path is not None and self.flow.reaching.get(asked) == env.get(path)
                if path is not None and same:
                    return self.known(path, test, env, holds, crossed=True)
        return {}

    def known(
        self, path: str, test: ast.Call, env: Environment, holds: bool, *, crossed: bool
    ) -> Environment:
        made = self.test(Test(path, Kind.OTHER, test, holds=holds, crossed=crossed))
        key = TESTED + path
        self.asked.add(path)
        return {key: env.get(key, frozenset()) | {made}}

    def test(self, wanted: Test) -> Test:
        """The one object for what is known by a test."""
        return self.tests.setdefault((id(wanted.node), wanted.holds, wanted.crossed), wanted)

    def under_tests(self, node: ast.AST, path: str, env: Environment) -> None:
        known = self.flow.tests.get(node)
        found = env.get(TESTED + path, frozenset())
        if known is not None:  # the second pass through a loop
            found = _common(known, found)
        if found or known is not None:
            self.flow.tests[node] = frozenset(t for t in found if isinstance(t, Test))

    def load_operands(self, values: list[ast.expr], holds: bool, env: Environment) -> None:
        """The parts of a condition, each of which is asked only if those before it let it."""
        first, *rest = values
        self.load(first, env)
        if rest:
            before = self.assume(self.tested(first, env, holds=holds), env)
            self.load_operands(rest, holds, env)
            self.restore(before, env)

    @staticmethod
    def assume(tests: Environment, env: Environment) -> Assumed:
        """Take tests for known; what was known of their paths before."""
        before = {key: env.get(key) for key in tests}
        env.update(tests)
        return before

    @staticmethod
    def restore(before: Assumed, env: Environment) -> None:
        for key, known in before.items():
            if key in env:  # else the path was assigned
                del env[key]
                env.update({key: known} if known is not None else {})

    def untested(self, path: str, env: Environment) -> None:
        """Forget the tests of a path that is assigned, and of what is reached through it."""
        for asked in self.asked:
            if asked == path or asked.startswith((f"{path}.", f"{path}[")):
                env.pop(TESTED + asked, None)

    def cross(self, root: str, env: Environment) -> None:
        for asked in self.asked:
            key = TESTED + asked
            if key in env and asked.startswith((f"{root}.", f"{root}[")):
                env[key] = frozenset(
                    self.test(Test(t.path, t.kind, t.node, holds=t.holds, crossed=True))
                    for t in env[key]
                    if isinstance(t, Test)
                )


_STATEMENTS: dict[type[ast.stmt], Callable[[Any, Any, Environment], Environment | None]] = {
    ast.Assign: _Interpreter.assign,
    ast.AnnAssign: _Interpreter.annotate,
    ast.AugAssign: _Interpreter.augment,
    ast.If: _Interpreter.branch,
    ast.For: _Interpreter.loop,
    ast.AsyncFor: _Interpreter.loop,
    ast.While: _Interpreter.loop,
    ast.With: _Interpreter.enter,
    ast.AsyncWith: _Interpreter.enter,
    ast.Try: _Interpreter.attempt,
    ast.TryStar: _Interpreter.attempt,
    ast.Match: _Interpreter.choose,
    ast.Return: _Interpreter.leave,
    ast.Raise: _Interpreter.leave,
    ast.Break: _Interpreter.jump,
    ast.Continue: _Interpreter.jump,
    ast.FunctionDef: _Interpreter.make,
    ast.AsyncFunctionDef: _Interpreter.make,
    ast.ClassDef: _Interpreter.make,
    ast.Import: _Interpreter.bring_in,
    ast.ImportFrom: _Interpreter.bring_in,
    ast.Delete: _Interpreter.delete,
    ast.Assert: _Interpreter.insist,
}


def _common(first: frozenset[Definition], second: frozenset[Definition]) -> frozenset[Definition]:
    """The tests that are asked on both of two ways."""
    others = {(t.node, t.holds): t for t in second if isinstance(t, Test)}
    found: list[Definition] = []
    for test in first:
        other = others.get((test.node, test.holds)) if isinstance(test, Test) else None
        if other is not None:
            found.append(other if other.crossed else test)
    return frozenset(found)
