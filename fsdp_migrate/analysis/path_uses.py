"""Uses of paths in expressions, and what assignments define."""

from __future__ import annotations

import ast
from collections import defaultdict

from fsdp_migrate.analysis.flow import Definition, Environment, Flow, access_path
from fsdp_migrate.analysis.isinstance_tests import IsinstanceTests
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import COMPREHENSIONS, NODE_FIELDS, children, place_in

# Expressions of which some parts are evaluated later, or not at all.
OF_THEIR_OWN = frozenset({ast.Lambda, *COMPREHENSIONS, ast.BoolOp, ast.IfExp, ast.NamedExpr})


class PathUses:
    """Records what reaches every use of a path, and every definition of one."""

    def __init__(self, flow: Flow, tests: IsinstanceTests, watched: list[str]) -> None:
        self.flow = flow
        self.tests = tests
        self.watched = watched
        self.reaching = flow.reaching
        self.below: dict[str, list[str]] = defaultdict(list)  # path -> defined ones it begins
        self._made: dict[tuple[int, str, tuple[int, ...]], Definition] = {}

    def define(
        self,
        path: str,
        kind: Kind,
        node: ast.AST,
        value: ast.expr | None = None,
        unpack: tuple[int, ...] = (),
    ) -> Definition:
        """The definition that a node makes of a path: one object, however often it is visited."""
        key = (id(node), path, unpack)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = Definition(path, kind, node, value, unpack)
            self.flow.definitions.append(found)
            if "." in path or "[" in path:
                for i, sign in enumerate(path):
                    if sign in ".[":
                        self.below[path[:i]].append(path)
        return found

    def loads(self, node: ast.stmt, env: Environment) -> None:
        """As :meth:`load`, for the expressions of a statement."""
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
        """As :meth:`load`, for ``a.b.c`` and the paths that it begins with."""
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
        """Record what reaches one use of a path."""
        found = env.get(path)
        if found:
            known = self.reaching.get(node)
            self.reaching[node] = found if known is None else known | found
        if self.tests.asked:
            self.tests.note(node, path, env)

    def load_parts(self, node: ast.AST, env: Environment) -> None:
        """As :meth:`load`, for expressions with parts that are evaluated later, or not at all."""
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
                before = self.tests.assume(self.tests.implied_by(node.test, env, holds=holds), env)
                self.load(part, env)
                self.tests.restore(before, env)
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
                inner.update(self.tests.implied_by(condition, inner, holds=True))
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for part in parts:
            self.load(part, inner)

    def load_operands(self, values: list[ast.expr], holds: bool, env: Environment) -> None:
        """Operands of ``and`` or ``or``: those before one are tests that it stands under."""
        first, *rest = values
        self.load(first, env)
        if rest:
            before = self.tests.assume(self.tests.implied_by(first, env, holds=holds), env)
            self.load_operands(rest, holds, env)
            self.tests.restore(before, env)

    def watch(self, node: ast.AST, env: Environment) -> None:
        """Note what defines the watched names where a function is defined or called."""
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
        if self.tests.asked:
            given = (*roots, *node.args, *(k.value for k in node.keywords))
            for name in {a.id for a in given if isinstance(a, ast.Name)}:
                self.tests.cross(name, env)

    def forget(self, path: str, env: Environment) -> None:
        """Forget what defined the paths that begin with this one."""
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
        """Record what an assignment to a target defines, every element of a tuple by itself."""
        if isinstance(target, (ast.Tuple, ast.List)):
            for index, element in enumerate(target.elts):
                self.store(element, kind, node, value, env, (*unpack, place_in(target, index)))
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
        if self.tests.asked:
            self.tests.forget(path, env)
        env[path] = frozenset({self.define(path, kind, node, value, unpack)})
