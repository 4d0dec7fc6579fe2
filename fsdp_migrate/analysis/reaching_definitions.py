"""Reaching definitions inside one scope.

For every load of a name or of a dotted path (``self.model``, ``cfg.fsdp.strategy``,
``kwargs["mesh"]``) this answers which definitions may have produced the value: a forward
abstract interpretation over the statements of one scope, branches joined by union, loop bodies
run twice. Paths rooted in a name are followed so that ``self.model = wrap(self.model)`` is seen
in order; a call on the root (``self.setup()``) forgets them, because it may have changed them.

The same run notes the ``isinstance`` tests that every use of a path stands under.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

from fsdp_migrate.analysis.flow import ELSEWHERE, TESTED, Environment, Flow, access_path
from fsdp_migrate.analysis.isinstance_tests import IsinstanceTests, common_tests
from fsdp_migrate.analysis.path_uses import PathUses
from fsdp_migrate.syntax import guards
from fsdp_migrate.syntax.name_table import NameTable
from fsdp_migrate.syntax.scopes import Kind, Scope, watched
from fsdp_migrate.syntax.trees import FUNCTIONS, walk


def analyse(scope: Scope, table: NameTable) -> Flow:
    """Run the analysis over the body of ``scope`` (a module, class, function or lambda)."""
    return _Interpreter(scope, table).run()


class _Interpreter:
    """Runs over the statements of a scope; each method takes one kind and gives what follows it."""

    def __init__(self, scope: Scope, table: NameTable) -> None:
        self.scope = scope
        self.table = table
        self.flow = Flow()
        self.watched = watched(scope)
        self.tests = IsinstanceTests(self.flow)
        self.uses = PathUses(self.flow, self.tests, self.watched)
        self.loops: list[tuple[list[Environment], list[Environment]]] = []  # (breaks, continues)
        self.exits: list[Environment] = []

    def run(self) -> Flow:
        node = self.scope.node
        env: Environment | None = {}
        if isinstance(node, FUNCTIONS):
            env = {
                name: frozenset({self.uses.define(name, b.kind, b.node, b.value)})
                for name, bindings in self.scope.bindings.items()
                for b in bindings
                if b.kind is Kind.PARAMETER
            }
        if isinstance(node, ast.Lambda):
            self.uses.load(node.body, env or {})
        elif isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            env = self.block(node.body, env)
        self.flow.final = self.merge([e for e in [env, *self.exits] if e is not None])
        return self.flow

    def merge(self, environments: Iterable[Environment]) -> Environment:
        """Join branches: the union of definitions, and the tests that hold in all of them.

        Where a branch did not assign a dotted path, the value from before the scope reaches too.
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
        for key in [TESTED + path for path in self.tests.asked]:
            sides = [env.get(key, frozenset()) for env in every]
            result[key] = reduce(common_tests, sides)
            if not result[key]:
                del result[key]
        for path in result if self.uses.below else ():
            dotted = ("." in path or "[" in path) and path[0] != TESTED
            if dotted and any(path not in env for env in every):
                result[path] |= {ELSEWHERE}
        return result

    def block(self, body: list[ast.stmt], env: Environment | None) -> Environment | None:
        """What is known behind a block; None where it does not go on."""
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
            self.uses.load(node.value, env)  # type: ignore[attr-defined]  # its class was compared
            return env
        run = _STATEMENTS.get(kind)
        if run is not None:
            return run(self, node, env)
        self.uses.loads(node, env)
        return env

    def assign(self, node: ast.Assign, env: Environment) -> Environment:
        self.uses.load(node.value, env)
        for target in node.targets:
            self.uses.store(target, Kind.ASSIGN, node, node.value, env)
        return env

    def annotated_assign(self, node: ast.AnnAssign, env: Environment) -> Environment:
        if node.value is not None:
            self.uses.load(node.value, env)
            self.uses.store(node.target, Kind.ASSIGN, node, node.value, env)
        return env

    def augmented_assign(self, node: ast.AugAssign, env: Environment) -> Environment:
        self.uses.load(node.value, env)
        self.uses.load(node.target, env)
        self.uses.store(node.target, Kind.AUGMENT, node, None, env)
        return env

    def with_(self, node: ast.With | ast.AsyncWith, env: Environment) -> Environment | None:
        for item in node.items:
            self.uses.load(item.context_expr, env)
            if item.optional_vars is not None:
                self.uses.store(item.optional_vars, Kind.ENTER, node, item.context_expr, env)
        return self.block(node.body, env)

    def return_or_raise(self, node: ast.Return | ast.Raise, env: Environment) -> Environment | None:
        if isinstance(node, ast.Raise) and guards.read(node) is not None:
            return env  # what stands behind a guard of ours is read as if it ran
        self.uses.loads(node, env)
        self.exits.append(env)
        return None

    def break_or_continue(self, node: ast.Break | ast.Continue, env: Environment) -> None:
        if self.loops:
            self.loops[-1][0 if isinstance(node, ast.Break) else 1].append(env)

    def def_or_class(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, env: Environment
    ) -> Environment:
        for child in self.evaluated_outside(node):
            self.uses.load(child, env)
        if self.watched:
            self.uses.watch(node, env)
        kind = Kind.CLASS if isinstance(node, ast.ClassDef) else Kind.FUNCTION
        self.tests.forget(node.name, env)
        env[node.name] = frozenset({self.uses.define(node.name, kind, node)})
        return env

    def import_(self, node: ast.Import | ast.ImportFrom, env: Environment) -> Environment:
        for alias in node.names:
            if alias.name != "*":
                name = alias.asname or (
                    alias.name.split(".")[0] if isinstance(node, ast.Import) else alias.name
                )
                self.tests.forget(name, env)
                env[name] = frozenset({self.uses.define(name, Kind.IMPORT, alias)})
        return env

    def assert_(self, node: ast.Assert, env: Environment) -> Environment:
        self.uses.loads(node, env)
        env.update(self.tests.implied_by(node.test, env, holds=True))
        return env

    def delete(self, node: ast.Delete, env: Environment) -> Environment:
        for target in node.targets:
            path = access_path(target)
            if path is not None:
                known = self.flow.deleted.get(target, frozenset())
                self.flow.deleted[target] = known | env.get(path, frozenset())
                self.uses.forget(path, env)
                self.tests.forget(path, env)
                env[path] = frozenset({self.uses.define(path, Kind.DELETE, node)})
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

    def if_(self, node: ast.If, env: Environment) -> Environment | None:
        self.uses.load(node.test, env)
        yes = env | self.tests.implied_by(node.test, env, holds=True)
        no = env | self.tests.implied_by(node.test, env, holds=False)
        return self.join([self.block(node.body, yes), self.block(node.orelse, no)])

    def match_(self, node: ast.Match, env: Environment) -> Environment | None:
        self.uses.load(node.subject, env)
        results: list[Environment | None] = []
        passed = dict(env)
        for case in node.cases:
            inner = dict(passed)
            for part in walk(case.pattern):
                name = getattr(part, "name", None) or getattr(part, "rest", None)
                if name:
                    self.tests.forget(name, inner)
                    whole = node.subject if part is case.pattern else None
                    kind = Kind.ASSIGN if whole is not None else Kind.OTHER
                    inner[name] = frozenset({self.uses.define(name, kind, part, whole)})
                    if whole is not None:
                        self.tests.share(name, whole, inner)
            inner |= self.tests.matched(node.subject, case.pattern, inner, holds=True)
            if case.guard is not None:
                self.uses.load(case.guard, inner)
                inner |= self.tests.implied_by(case.guard, inner, holds=True)
            else:
                passed |= self.tests.matched(node.subject, case.pattern, passed, holds=False)
            results.append(self.block(case.body, inner))
        return self.join([passed, *results])

    def loop(
        self, node: ast.For | ast.AsyncFor | ast.While, env: Environment
    ) -> Environment | None:
        iterable = None if isinstance(node, ast.While) else node.iter
        if iterable is not None:
            self.uses.load(iterable, env)
        entry: Environment = dict(env)
        breaks: list[Environment] = []
        before: Environment | None = None
        for _ in range(2):  # the second pass sees what the first one defined
            inner = dict(entry)
            if isinstance(node, ast.While):
                self.uses.load(node.test, inner)
            else:
                self.uses.store(node.target, Kind.ELEMENT, node, iterable, inner)
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

    def try_(self, node: ast.Try | ast.TryStar, env: Environment) -> Environment | None:
        done = self.block(node.body, dict(env))
        # Anything the body defined may or may not be there when a handler starts.
        seen = [dict(env), *([done] if done is not None else []), self.defined_in(node.body)]
        start = self.merge(seen)
        results = []
        if done is not None:
            results.append(self.block(node.orelse, done))
        for handler in node.handlers:
            inner = dict(start)
            if handler.type is not None:
                self.uses.load(handler.type, inner)
            if handler.name:
                self.tests.forget(handler.name, inner)
                inner[handler.name] = frozenset(
                    {self.uses.define(handler.name, Kind.OTHER, handler)}
                )
            results.append(self.block(handler.body, inner))
        joined = self.join(results)
        if not node.finalbody:
            return joined
        final = self.block(node.finalbody, dict(joined if joined is not None else start))
        return final if joined is not None else None

    def defined_in(self, body: list[ast.stmt]) -> Environment:
        """All that the statements of a block may have defined."""
        inside = {n for statement in body for n in walk(statement)}
        result: Environment = {}
        for definition in self.flow.definitions:
            if definition.node in inside:
                known = result.get(definition.path, frozenset())
                result[definition.path] = known | {definition}
        return result

    def join(self, environments: list[Environment | None]) -> Environment | None:
        """As :meth:`merge`, of those branches that go on; None when none does."""
        alive = [e for e in environments if e is not None]
        return self.merge(alive) if alive else None


_STATEMENTS: dict[type[ast.stmt], Callable[[Any, Any, Environment], Environment | None]] = {
    ast.Assign: _Interpreter.assign,
    ast.AnnAssign: _Interpreter.annotated_assign,
    ast.AugAssign: _Interpreter.augmented_assign,
    ast.If: _Interpreter.if_,
    ast.For: _Interpreter.loop,
    ast.AsyncFor: _Interpreter.loop,
    ast.While: _Interpreter.loop,
    ast.With: _Interpreter.with_,
    ast.AsyncWith: _Interpreter.with_,
    ast.Try: _Interpreter.try_,
    ast.TryStar: _Interpreter.try_,
    ast.Match: _Interpreter.match_,
    ast.Return: _Interpreter.return_or_raise,
    ast.Raise: _Interpreter.return_or_raise,
    ast.Break: _Interpreter.break_or_continue,
    ast.Continue: _Interpreter.break_or_continue,
    ast.FunctionDef: _Interpreter.def_or_class,
    ast.AsyncFunctionDef: _Interpreter.def_or_class,
    ast.ClassDef: _Interpreter.def_or_class,
    ast.Import: _Interpreter.import_,
    ast.ImportFrom: _Interpreter.import_,
    ast.Delete: _Interpreter.delete,
    ast.Assert: _Interpreter.assert_,
}
