"""The walk over a module, statement by statement, in the order in which it runs."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Sequence

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.rewriting.bound_names.conditions import (
    condition_text,
    known_outcome,
)
from fsdp_migrate.rewriting.bound_names.function_needs import FunctionNeeds, Needs
from fsdp_migrate.rewriting.bound_names.guarded_imports import (
    is_support,
    only_imports_fail,
    surely_imports,
)
from fsdp_migrate.rewriting.bound_names.reads import Reads, UnsureRead
from fsdp_migrate.rewriting.bound_names.state import (
    Bindings,
    Definition,
    State,
    is_definition,
    unbound_by,
)
from fsdp_migrate.syntax.name_table import NameTable
from fsdp_migrate.syntax.scopes import Kind, Scope
from fsdp_migrate.syntax.trees import COMPREHENSIONS, NODE_FIELDS, last_part

ENDS = frozenset(("sys.exit", "exit", "quit", "os._exit", "os.abort"))


def find_unsure_reads(
    table: NameTable, true_conditions: Collection[str] = (), maybe_none: Collection[str] = ()
) -> set[UnsureRead]:
    """The reads of a module that may fail because nothing is bound to the name yet, or any more.

    ``true_conditions`` are known to hold, each as :func:`condition_text` gives it; the names in
    ``maybe_none`` are as good as unbound where they are None.
    """
    return _Walk(table, true_conditions, maybe_none).walk_module()


class _Walk:
    """Goes through statements with the state that is sure in front of each.

    A method takes the state, and the scope that the statement stands in, and returns the state
    behind it; None where the program does not go on behind it (``return``, ``sys.exit()``).
    """

    def __init__(
        self, table: NameTable, true_conditions: Collection[str], maybe_none: Collection[str]
    ) -> None:
        self.table = table
        self.true_conditions = true_conditions
        self.maybe_none = maybe_none
        self.bindings = Bindings(table)
        functions = FunctionNeeds(table, self.bindings, self.walk_function)
        self.reads = Reads(table, self.bindings, functions, owner=table.module)
        self.loops: list[list[State]] = []  # what is bound where a loop is left by ``break``
        self.postponed = table.postpones_annotations

    def walk_module(self) -> set[UnsureRead]:
        state = self.block(self.table.tree.body, set(), self.table.module)
        if state is not None:  # what is called from outside, when all has been loaded
            for scope in self.table.scopes.values():
                if scope.is_function:
                    self.reads.call_later(scope, state)
        return self.reads.unsure

    def walk_function(self, function: Scope, needs: Needs) -> None:
        before = self.reads.owner, self.reads.needs, self.loops
        self.reads.owner, self.reads.needs, self.loops = function, needs, []
        state: State = {
            (function, name)
            for name, bindings in function.bindings.items()
            if any(b.kind is Kind.PARAMETER for b in bindings)
        }
        if isinstance(function.node, ast.Lambda):
            self.evaluate(function.node.body, state, function)
        else:
            assert isinstance(function.node, ast.FunctionDef | ast.AsyncFunctionDef)
            self.block(function.node.body, state, function)
        self.reads.owner, self.reads.needs, self.loops = before

    # -- statements -----------------------------------------------------------------------------

    def block(self, body: Sequence[ast.stmt], state: State | None, scope: Scope) -> State | None:
        """What is surely bound behind statements; None where they do not go on."""
        for statement in body:
            if state is None:
                return None
            state = self.statement(statement, state, scope)
        return state

    def statement(self, node: ast.stmt, state: State, scope: Scope) -> State | None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return self.define(node, state, scope)
            case ast.Import() | ast.ImportFrom():
                return self.import_(node, state, scope)
            case ast.If():
                return self.branch(node, state, scope)
            case ast.For() | ast.AsyncFor() | ast.While():
                return self.loop(node, state, scope)
            case ast.Try() | ast.TryStar():
                return self.try_(node, state, scope)
            case ast.With() | ast.AsyncWith():
                return self.with_(node, state, scope)
            case ast.Match(subject=subject, cases=cases):
                self.evaluate(subject, state, scope)
                ends: list[State | None] = [] if _is_exhaustive(cases) else [state]
                for case in cases:
                    inner = set(state)
                    self.evaluate(case.pattern, inner, scope)
                    if case.guard is not None:
                        self.evaluate(case.guard, inner, scope)
                    ends.append(self.block(case.body, inner, scope))
                return self.bindings.join(ends)
            case ast.Return() | ast.Raise():
                self.parts(node, state, scope)
                return None
            case ast.Break():
                if self.loops:
                    self.loops[-1].append(state)
                return None
            case ast.Continue():
                return None
            case ast.Assign(targets=targets, value=value):
                self.evaluate(value, state, scope)
                nothing = isinstance(value, ast.Constant) and value.value is None
                for target in targets:
                    if not (nothing and getattr(target, "id", "") in self.maybe_none):
                        self.evaluate(target, state, scope)
                return state
            case ast.AugAssign(target=target, value=value):
                if isinstance(target, ast.Name):
                    self.reads.read(target, state, scope)
                self.evaluate(value, state, scope)
                self.evaluate(target, state, scope)
                return state
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                if value is not None:
                    self.evaluate(value, state, scope)
                if not (self.postponed or scope.is_function):
                    self.evaluate(annotation, state, scope)
                if value is not None or not isinstance(target, ast.Name):
                    self.evaluate(target, state, scope)
                return state
            case ast.Assert(test=ast.Constant(value=False)):
                return None
            case ast.Expr(value=ast.Call(func=func) as call):
                self.evaluate(call, state, scope)
                return None if access_path(func) in ENDS else state
        self.parts(node, state, scope)
        return state

    def branch(self, node: ast.If, state: State, scope: Scope) -> State | None:
        """Both ways of an ``if``; what one of them binds is bound where it is asked again."""
        self.evaluate(node.test, state, scope)
        outcome = known_outcome(node.test)
        if self.true_conditions and condition_text(node.test) in self.true_conditions:
            outcome = True
        ends: list[State | None] = []
        for body, holds in ((node.body, True), (node.orelse, False)):
            inner = self.bindings.where(node.test, holds, state)
            end = None if outcome is (not holds) else self.block(body, inner, scope)
            ends.append(end)
            if end is not None and not scope.is_class:
                self.bindings.note_functions(body, end)
        return self.bindings.join_branches(node.test, *ends)

    def define(self, node: Definition, state: State, scope: Scope) -> State:
        for decorator in node.decorator_list:
            self.evaluate(decorator, state, scope)
        inner = self.table.scopes[node]
        if isinstance(node, ast.ClassDef):
            for base in (*node.bases, *(k.value for k in node.keywords)):
                self.evaluate(base, state, scope)
            self.block(node.body, state, inner)
            if node.decorator_list or node.bases or node.keywords:
                self.reads.call_unnamed(inner, f"as {node.name} is made", state)
        else:
            arguments = node.args
            for default in (*arguments.defaults, *arguments.kw_defaults):
                if default is not None:
                    self.evaluate(default, state, scope)
            if not self.postponed:
                for annotation in (*_annotations(arguments), node.returns):
                    if annotation is not None:
                        self.evaluate(annotation, state, scope)
            if node.decorator_list:
                self.reads.call_unnamed(inner, f"as {node.name} is made", state)
        self.bindings.bind(node.name, state, scope)
        return state

    def import_(self, node: ast.Import | ast.ImportFrom, state: State, scope: Scope) -> State:
        module = node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
        level = node.level if isinstance(node, ast.ImportFrom) else 0
        top = module.split(".")[0]
        foreign = not level and (top in sys.stdlib_module_names or top == "torch")
        if not (foreign or is_support(module)) and scope is self.table.module:
            # It may be of the project, import this module back, and call what there is of it.
            for fact in list(state):
                if len(fact) == 2 and is_definition(fact):
                    self.reads.call(fact, f"by the import of {module}", state)
        for alias in node.names:
            if alias.name != "*":
                plain = alias.name.split(".")[0] if isinstance(node, ast.Import) else alias.name
                self.bindings.bind(alias.asname or plain, state, scope)
        return state

    def loop(
        self, node: ast.For | ast.AsyncFor | ast.While, state: State, scope: Scope
    ) -> State | None:
        if isinstance(node, ast.While):
            self.evaluate(node.test, state, scope)
            endless = known_outcome(node.test) is True
        else:
            self.evaluate(node.iter, state, scope)
            endless = False
        state = state - unbound_by(node.body, scope)
        inner = set(state)
        if not isinstance(node, ast.While):
            self.evaluate(node.target, inner, scope)
        self.loops.append([])
        self.block(node.body, inner, scope)
        breaks = self.loops.pop()
        done = None if endless else self.block(node.orelse, set(state), scope)
        return self.bindings.join([done, *breaks])

    def with_(self, node: ast.With | ast.AsyncWith, state: State, scope: Scope) -> State | None:
        swallows = False
        for item in node.items:
            self.evaluate(item.context_expr, state, scope)
            if item.optional_vars is not None:
                self.evaluate(item.optional_vars, state, scope)
            called = item.context_expr
            if isinstance(called, ast.Call):
                swallows |= last_part(called.func) == "suppress"
        if swallows and not surely_imports(node.body):
            before = state - unbound_by(node.body, scope)
            return self.bindings.join([before, self.block(node.body, set(state), scope)])
        return self.block(node.body, state, scope)

    def try_(self, node: ast.Try | ast.TryStar, state: State, scope: Scope) -> State | None:
        start = state - unbound_by(node.body, scope)
        done = self.block(node.body, set(state), scope)
        if done is not None:
            done = self.block(node.orelse, done, scope)
        ends = [done]
        for handler in node.handlers:
            if handler.type is not None:
                self.evaluate(handler.type, start, scope)
            inner = set(start)
            if surely_imports(node.body) and only_imports_fail(handler):
                self.block(handler.body, inner, scope)
                continue  # torch is there
            if handler.name:
                self.bindings.bind(handler.name, inner, scope)
            end = self.block(handler.body, inner, scope)
            if end is not None and handler.name:
                self.bindings.unbind(handler.name, end, scope)  # as the language does
            ends.append(end)
        joined = self.bindings.join(ends)
        if not node.finalbody:
            return joined
        for part in (*node.handlers, node):
            start -= unbound_by(part.body, scope)
        if joined is None:
            self.block(node.finalbody, start, scope)
            return None
        # The block runs in any case; what it reads must be there even if something failed.
        self.block(node.finalbody, set(start), scope)
        return self.block(node.finalbody, joined, scope)

    # -- expressions ----------------------------------------------------------------------------

    def parts(self, node: ast.AST, state: State, scope: Scope) -> None:
        for name in NODE_FIELDS[node.__class__]:
            part = getattr(node, name)
            if part.__class__ is list:
                for each in part:
                    if isinstance(each, ast.AST):
                        self.evaluate(each, state, scope)
            elif isinstance(part, ast.AST):
                self.evaluate(part, state, scope)

    def evaluate(self, node: ast.AST, state: State, scope: Scope) -> None:
        """Read and bind the names of an expression, a target or a pattern."""
        kind = node.__class__
        if kind is ast.Constant:
            return
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                self.reads.read(node, state, scope)
            elif isinstance(node.ctx, ast.Store):
                self.bindings.bind(node.id, state, scope)
            else:
                self.reads.read(node, state, scope)
                self.bindings.unbind(node.id, state, scope)
        elif isinstance(node, ast.Lambda):
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    self.evaluate(default, state, scope)
            self.reads.call_unnamed(self.table.scopes[node], "by a lambda", state)
        elif isinstance(node, COMPREHENSIONS):
            inner = self.table.scopes[node]
            for index, generator in enumerate(node.generators):
                self.evaluate(generator.iter, state, inner if index else scope)
                for condition in generator.ifs:
                    self.evaluate(condition, state, inner)
            results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            for result in results:
                self.evaluate(result, state, inner)
        elif isinstance(node, ast.NamedExpr):
            self.evaluate(node.value, state, scope)
            while isinstance(scope.node, COMPREHENSIONS) and scope.parent is not None:
                scope = scope.parent
            self.bindings.bind(node.target.id, state, scope)
        elif isinstance(node, ast.IfExp):
            self.evaluate(node.test, state, scope)
            for part, holds in ((node.body, True), (node.orelse, False)):
                if known_outcome(node.test) is not (not holds):
                    self.evaluate(part, set(state), scope)
        else:
            name = getattr(node, "name", None) or getattr(node, "rest", None)
            self.parts(node, state, scope)
            if isinstance(name, str) and isinstance(node, ast.pattern):
                self.bindings.bind(name, state, scope)


def _is_exhaustive(cases: Sequence[ast.match_case]) -> bool:
    last = cases[-1]
    return last.guard is None and isinstance(last.pattern, ast.MatchAs) and not last.pattern.pattern


def _annotations(arguments: ast.arguments) -> list[ast.expr | None]:
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    extra = (arguments.vararg, arguments.kwarg)
    return [each.annotation for each in (*every, *extra) if each is not None]
