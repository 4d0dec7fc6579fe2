"""Reaching definitions inside one scope.

For every load of a name or of a dotted path (``self.model``, ``cfg.fsdp.strategy``,
``kwargs["mesh"]``) this answers which definitions may have produced the value: a forward
abstract interpretation over the statements of one scope, branches joined by union, loop bodies
run twice. Paths rooted in a name are followed so that ``self.model = wrap(self.model)`` is seen
in order; a call on the root (``self.setup()``) forgets them, because it may have changed them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from fsdp_migrate import guards
from fsdp_migrate.names import COMPREHENSIONS, FUNCTIONS, NODE_FIELDS, Kind, NameTable, Scope


@dataclass(eq=False)
class Definition:
    """One thing that may give a path its value; fields as in ``names.Binding``."""

    path: str
    kind: Kind
    node: ast.AST
    value: ast.expr | None = None
    unpack: tuple[int, ...] = ()


ELSEWHERE = Definition("", Kind.OTHER, ast.Pass())
"""Reaches a dotted path that some branch did not assign: whatever it held before this scope."""

Environment = dict[str, frozenset[Definition]]


def access_path(node: ast.expr) -> str | None:
    """``self.model`` and ``kw["mesh"]`` as strings; None if the expression is not a path."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = access_path(node.value)
        return None if base is None else f"{base}.{node.attr}"
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        base = access_path(node.value)
        return None if base is None else f"{base}[{node.slice.value!r}]"
    return None


@dataclass(eq=False)
class Flow:
    """The result for one scope."""

    reaching: dict[ast.AST, frozenset[Definition]] = field(default_factory=dict)
    final: Environment = field(default_factory=dict)
    definitions: list[Definition] = field(default_factory=list)  # in source order
    order: dict[ast.AST, int] = field(default_factory=dict)  # statement -> first visit


def analyse(scope: Scope, table: NameTable) -> Flow:
    """Run the analysis over the body of ``scope`` (a module, class, function or lambda)."""
    return _Interpreter(scope, table).run()


class _Interpreter:
    def __init__(self, scope: Scope, table: NameTable) -> None:
        self.scope = scope
        self.table = table
        self.flow = Flow()
        self.loops: list[tuple[list[Environment], list[Environment]]] = []  # (breaks, continues)
        self.made: dict[tuple[int, str, tuple[int, ...]], Definition] = {}
        self.exits: list[Environment] = []
        self.roots: set[str] = set()  # paths that some defined path begins with

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
            self.roots.update(path[:i] for i, sign in enumerate(path) if sign in ".[")
        return found

    @staticmethod
    def merge(environments: Iterable[Environment]) -> Environment:
        """Union. A dotted path that one side does not know keeps its outside value there."""
        every = list(environments)
        result: Environment = {}
        for env in every:
            for path, definitions in env.items():
                known = result.get(path)
                result[path] = definitions if known is None else known | definitions
        for path in result:
            if ("." in path or "[" in path) and any(path not in env for env in every):
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
        self.flow.order.setdefault(node, len(self.flow.order))
        match node:
            case ast.Assign():
                self.load(node.value, env)
                for target in node.targets:
                    self.store(target, Kind.ASSIGN, node, node.value, env)
            case ast.AnnAssign():
                if node.value is not None:
                    self.load(node.value, env)
                    self.store(node.target, Kind.ASSIGN, node, node.value, env)
            case ast.AugAssign():
                self.load(node.value, env)
                self.load(node.target, env)
                self.store(node.target, Kind.AUGMENT, node, None, env)
            case ast.If():
                return self.branch(node, env)
            case ast.For() | ast.AsyncFor() | ast.While():
                return self.loop(node, env)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self.load(item.context_expr, env)
                    if item.optional_vars is not None:
                        self.store(item.optional_vars, Kind.ENTER, node, item.context_expr, env)
                return self.block(node.body, env)
            case ast.Try() | ast.TryStar():
                return self.attempt(node, env)
            case ast.Match():
                return self.choose(node, env)
            case ast.Raise() if guards.read(node) is not None:
                pass  # what stands behind a guard of ours is read as if it ran
            case ast.Return() | ast.Raise():
                self.loads(node, env)
                self.exits.append(env)
                return None
            case ast.Break() | ast.Continue():
                if self.loops:
                    self.loops[-1][0 if isinstance(node, ast.Break) else 1].append(env)
                return None
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                for child in self.evaluated_outside(node):
                    self.load(child, env)
                kind = Kind.CLASS if isinstance(node, ast.ClassDef) else Kind.FUNCTION
                env[node.name] = frozenset({self.define(node.name, kind, node)})
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    if alias.name != "*":
                        name = alias.asname or (
                            alias.name.split(".")[0] if isinstance(node, ast.Import) else alias.name
                        )
                        env[name] = frozenset({self.define(name, Kind.IMPORT, alias)})
            case ast.Delete():
                for target in node.targets:
                    path = access_path(target)
                    if path is not None:
                        self.forget(path, env)
                        env[path] = frozenset({self.define(path, Kind.DELETE, node)})
            case _:
                self.loads(node, env)
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
        return self.join([self.block(node.body, dict(env)), self.block(node.orelse, dict(env))])

    def choose(self, node: ast.Match, env: Environment) -> Environment | None:
        self.load(node.subject, env)
        results: list[Environment | None] = [dict(env)]
        for case in node.cases:
            inner = dict(env)
            for part in ast.walk(case.pattern):
                name = getattr(part, "name", None) or getattr(part, "rest", None)
                if name:
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
        for _ in range(2):  # the second pass sees what the first one defined
            continues: list[Environment] = []
            self.loops.append((breaks, continues))
            inner = dict(entry)
            if isinstance(node, ast.While):
                self.load(node.test, inner)
            else:
                self.store(node.target, Kind.ELEMENT, node, iterable, inner)
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
                inner[handler.name] = frozenset({self.define(handler.name, Kind.OTHER, handler)})
            results.append(self.block(handler.body, inner))
        joined = self.join(results)
        if not node.finalbody:
            return joined
        final = self.block(node.finalbody, dict(joined if joined is not None else start))
        return final if joined is not None else None

    def partial(self, body: list[ast.stmt]) -> Environment:
        inside = {n for statement in body for n in ast.walk(statement)}
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
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.load(child, env)

    def load(self, node: ast.AST, env: Environment) -> None:
        """Record what reaches every path read in an expression, left to right."""
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            path = access_path(node)
            if path is not None:
                found = env.get(path)
                if found:
                    known = self.flow.reaching.get(node)
                    self.flow.reaching[node] = found if known is None else known | found
            if isinstance(node, ast.Name):
                return
        if isinstance(node, ast.Lambda):
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    self.load(default, env)
            return  # its body runs later, in a scope of its own
        if isinstance(node, COMPREHENSIONS):
            self.load_comprehension(node, env)
            return
        if isinstance(node, ast.NamedExpr):
            self.load(node.value, env)
            self.store(node.target, Kind.ASSIGN, node, node.value, env)
            return
        for name in NODE_FIELDS[node.__class__]:
            value = getattr(node, name)
            if value.__class__ is list:
                for item in value:
                    if isinstance(item, ast.AST):
                        self.load(item, env)
            elif isinstance(value, ast.AST):
                self.load(value, env)
        if isinstance(node, ast.Call):
            self.called(node, env)

    def load_comprehension(self, node: ast.expr, env: Environment) -> None:
        assert isinstance(node, COMPREHENSIONS)
        inner = dict(env)
        for generator in node.generators:
            self.load(generator.iter, inner)
            self.store(generator.target, Kind.ELEMENT, generator, generator.iter, inner)
            for condition in generator.ifs:
                self.load(condition, inner)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for part in parts:
            self.load(part, inner)

    def called(self, node: ast.Call, env: Environment) -> None:
        """``self.setup()`` and ``setup(self)`` may change ``self.anything``."""
        roots = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        for argument in (*roots, *node.args):
            if isinstance(argument, ast.Name):
                self.forget(argument.id, env)

    def forget(self, path: str, env: Environment) -> None:
        if path not in self.roots:
            return
        for known in [k for k in env if k.startswith((f"{path}.", f"{path}["))]:
            del env[known]

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
        env[path] = frozenset({self.define(path, kind, node, value, unpack)})
