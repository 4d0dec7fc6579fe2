"""The walk over one module that fills its name table.

Scoping follows the language reference (4.2 Naming and binding): class bodies are skipped by nested
functions, comprehensions have a scope of their own, ``global`` and ``nonlocal`` redirect.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from fsdp_migrate.syntax.name_table import NameTable
from fsdp_migrate.syntax.scopes import Binding, Kind, Scope
from fsdp_migrate.syntax.trees import (
    COMPREHENSIONS,
    FUNCTIONS,
    NODE_FIELDS,
    children,
    place_in,
)


def build(tree: ast.Module, package: str = "", *, redirects: bool = True) -> NameTable:
    """Walk ``tree`` once. ``package`` is the dotted package relative imports start from;
    ``redirects`` is False when the source is known to hold no ``global`` and no ``nonlocal``."""
    top = Scope(tree, None)
    table = NameTable(tree, top)
    table.scopes[tree] = top
    _Builder(table, package, redirects=redirects).visit_module()
    return table


# Looked up as globals they cost half as much, a million times.
Attribute, Call, Constant, Name = ast.Attribute, ast.Call, ast.Constant, ast.Name


class _Builder:
    """The walk. Plain recursion over fields: ``ast.NodeVisitor`` costs twice as much."""

    def __init__(self, table: NameTable, package: str, *, redirects: bool) -> None:
        self.table = table
        self.package = package
        self.redirects = redirects
        # One attribute less for each node.
        self.parents, self.within = table.parents, table.within
        self.names, self.attributes, self.calls = table.names, table.attributes, table.calls
        self.strings = table.strings

    def visit_module(self) -> None:
        self.body(self.table.tree.body, self.table.tree, self.table.module)

    def body(self, nodes: list[ast.stmt], parent: ast.AST, scope: Scope) -> None:
        for node in nodes:
            self.visit(node, parent, scope)

    def bind(
        self,
        name: str,
        kind: Kind,
        node: ast.AST,
        scope: Scope,
        value: ast.expr | None = None,
        unpack: tuple[int, ...] = (),
        qualified: str = "",
    ) -> Binding:
        target = scope
        redirect = scope.redirected.get(name)
        if redirect == "global":
            target = scope.module_scope()
        elif redirect == "nonlocal":
            target = _nonlocal_owner(name, scope)
        binding = Binding(name, kind, node, target, value, unpack, qualified)
        target.bindings.setdefault(name, []).append(binding)
        if kind is Kind.IMPORT:
            self.table.imports.append(binding)
        return binding

    def target(
        self,
        target: ast.expr,
        kind: Kind,
        node: ast.AST,
        scope: Scope,
        value: ast.expr | None,
        unpack: tuple[int, ...] = (),
    ) -> None:
        """Bind the names in an assignment target; the target's own nodes are visited elsewhere."""
        if isinstance(target, ast.Name):
            self.bind(target.id, kind, node, scope, value, unpack)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for index, element in enumerate(target.elts):
                self.target(element, kind, node, scope, value, (*unpack, place_in(target, index)))
        elif isinstance(target, ast.Starred):
            self.target(target.value, Kind.OTHER, node, scope, None)

    def visit(self, node: ast.AST, parent: ast.AST, scope: Scope) -> None:
        self.parents[node] = parent
        kind = node.__class__
        while kind is Attribute:
            self.attributes.append(node)  # type: ignore[arg-type]  # its class was compared
            self.within[node] = scope
            inner = node.value  # type: ignore[attr-defined]
            self.parents[inner] = node
            node, kind = inner, inner.__class__
        if kind is Name:
            self.names.append(node)  # type: ignore[arg-type]
            self.within[node] = scope
            return
        if kind is Constant:
            if node.value.__class__ is str:  # type: ignore[attr-defined]
                self.strings.append(node)  # type: ignore[arg-type]
            return
        if kind is Call:
            self.calls.append(node)  # type: ignore[arg-type]
            self.within[node] = scope
            self.call(node, scope)  # type: ignore[arg-type]
            return
        handler = _HANDLERS.get(kind)
        if handler is not None:
            handler(self, node, scope)
        else:
            self.children(node, scope)

    def children(self, node: ast.AST, scope: Scope) -> None:
        visit = self.visit
        for name in NODE_FIELDS[node.__class__]:
            value = getattr(node, name)
            if value is None:
                continue
            if value.__class__ is list:
                for item in value:
                    if item is not None:
                        visit(item, node, scope)
            elif isinstance(value, ast.AST):
                visit(value, node, scope)

    def call(self, node: ast.Call, scope: Scope) -> None:
        visit = self.visit
        visit(node.func, node, scope)
        for argument in node.args:
            visit(argument, node, scope)
        for keyword in node.keywords:
            self.parents[keyword] = node
            visit(keyword.value, keyword, scope)

    # -- scopes ---------------------------------------------------------------------------------

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        self.bind(node.name, Kind.FUNCTION, node, scope)
        for decorator in node.decorator_list:
            self.visit(decorator, node, scope)
        inner = Scope(node, scope)
        self.table.scopes[node] = inner
        self.arguments(node.args, node, scope, inner)
        if node.returns is not None:
            self.visit(node.returns, node, scope)
        if self.redirects:
            _redirects(node.body, inner)
        self.body(node.body, node, inner)

    def lambda_(self, node: ast.Lambda, scope: Scope) -> None:
        inner = Scope(node, scope)
        self.table.scopes[node] = inner
        self.arguments(node.args, node, scope, inner)
        self.visit(node.body, node, inner)

    def arguments(self, args: ast.arguments, owner: ast.AST, outer: Scope, inner: Scope) -> None:
        self.table.parents[args] = owner
        positional = [*args.posonlyargs, *args.args]
        defaults: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults))
        defaults += args.defaults
        pairs = [*zip(positional, defaults, strict=True)]
        pairs += [*zip(args.kwonlyargs, args.kw_defaults, strict=True)]
        for arg, default in pairs:
            self.parameter(arg, args, default, outer, inner)
        for extra in (args.vararg, args.kwarg):
            if extra is not None:
                self.parameter(extra, args, None, outer, inner)

    def parameter(
        self,
        arg: ast.arg,
        args: ast.arguments,
        default: ast.expr | None,
        outer: Scope,
        inner: Scope,
    ) -> None:
        self.table.parents[arg] = args
        self.bind(arg.arg, Kind.PARAMETER, arg, inner, default)
        if arg.annotation is not None:
            self.visit(arg.annotation, arg, outer)
        if default is not None:
            self.visit(default, args, outer)

    def class_(self, node: ast.ClassDef, scope: Scope) -> None:
        self.bind(node.name, Kind.CLASS, node, scope)
        for expression in [*node.decorator_list, *node.bases]:
            self.visit(expression, node, scope)
        for keyword in node.keywords:
            self.visit(keyword, node, scope)
        inner = Scope(node, scope)
        self.table.scopes[node] = inner
        self.body(node.body, node, inner)

    def comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp, scope: Scope
    ) -> None:
        inner = Scope(node, scope)
        self.table.scopes[node] = inner
        for index, generator in enumerate(node.generators):
            self.table.parents[generator] = node
            self.target(generator.target, Kind.ELEMENT, generator, inner, generator.iter)
            self.visit(generator.target, generator, inner)
            self.visit(generator.iter, generator, scope if index == 0 else inner)
            for condition in generator.ifs:
                self.visit(condition, generator, inner)
        if isinstance(node, ast.DictComp):
            self.visit(node.key, node, inner)
            self.visit(node.value, node, inner)
        else:
            self.visit(node.elt, node, inner)

    # -- bindings -------------------------------------------------------------------------------

    def import_(self, node: ast.Import, scope: Scope) -> None:
        self.table.import_statements.append(node)
        for alias in node.names:
            self.table.parents[alias] = node
            if alias.asname:
                self.bind(alias.asname, Kind.IMPORT, alias, scope, qualified=alias.name)
            else:
                top = alias.name.split(".")[0]
                self.bind(top, Kind.IMPORT, alias, scope, qualified=top)

    def import_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        self.table.import_statements.append(node)
        base = self.absolute(node)
        for alias in node.names:
            self.table.parents[alias] = node
            if alias.name == "*":
                self.table.stars.append((scope, base))
            else:
                name = alias.asname or alias.name
                qualified = f"{base}.{alias.name}" if base else alias.name
                self.bind(name, Kind.IMPORT, alias, scope, qualified=qualified)

    def absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.package.split(".") if self.package else []
        parts = parts[: len(parts) - (node.level - 1)]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def assign(self, node: ast.Assign, scope: Scope) -> None:
        for target in node.targets:
            self.target(target, Kind.ASSIGN, node, scope, node.value)
        self.children(node, scope)

    def ann_assign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None or scope.is_class:
            self.target(node.target, Kind.ASSIGN, node, scope, node.value)
        self.children(node, scope)

    def aug_assign(self, node: ast.AugAssign, scope: Scope) -> None:
        self.target(node.target, Kind.AUGMENT, node, scope, None)
        self.children(node, scope)

    def named(self, node: ast.NamedExpr, scope: Scope) -> None:
        outer = scope
        while isinstance(outer.node, COMPREHENSIONS) and outer.parent is not None:
            outer = outer.parent
        self.target(node.target, Kind.ASSIGN, node, outer, node.value)
        self.children(node, scope)

    def for_(self, node: ast.For | ast.AsyncFor, scope: Scope) -> None:
        self.target(node.target, Kind.ELEMENT, node, scope, node.iter)
        self.children(node, scope)

    def with_(self, node: ast.With | ast.AsyncWith, scope: Scope) -> None:
        for item in node.items:
            if item.optional_vars is not None:
                self.target(item.optional_vars, Kind.ENTER, node, scope, item.context_expr)
        self.children(node, scope)

    def handler(self, node: ast.ExceptHandler, scope: Scope) -> None:
        if node.name:
            self.bind(node.name, Kind.OTHER, node, scope)
        self.children(node, scope)

    def pattern(self, node: ast.AST, scope: Scope) -> None:
        name = getattr(node, "name", None) or getattr(node, "rest", None)
        if name:
            self.bind(name, Kind.OTHER, node, scope)
        self.children(node, scope)

    def match(self, node: ast.Match, scope: Scope) -> None:
        self.table.matches.append(node)
        self.children(node, scope)

    def delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            self.target(target, Kind.DELETE, node, scope, None)
        self.children(node, scope)

    def return_(self, node: ast.Return, scope: Scope) -> None:
        self.table.returns.setdefault(scope.node, []).append(node)
        if node.value is not None:
            self.visit(node.value, node, scope)

    def yield_(self, node: ast.Yield | ast.YieldFrom, scope: Scope) -> None:
        self.table.yields.setdefault(scope.node, []).append(node)
        self.children(node, scope)

    def subscript(self, node: ast.Subscript, scope: Scope) -> None:
        self.table.subscripts.append(node)
        self.visit(node.value, node, scope)
        self.visit(node.slice, node, scope)

    def redirect(self, node: ast.AST, scope: Scope) -> None:
        """``global`` and ``nonlocal`` were read when the scope was opened."""


def _nonlocal_owner(name: str, scope: Scope) -> Scope:
    """The function around that has a ``nonlocal`` name: the nearest one that has given it a value
    so far, or the nearest, which may do so only below the function inside."""
    around = [each for each in scope.outwards() if each is not scope and each.is_function]
    bound = (each for each in around if name in each.bindings)
    return next(bound, around[0] if around else scope)


def _redirects(body: list[ast.stmt], scope: Scope) -> None:
    """Record ``global``/``nonlocal`` before any binding of the body is seen."""
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            word = "global" if isinstance(node, ast.Global) else "nonlocal"
            scope.redirected.update(dict.fromkeys(node.names, word))
        elif not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.expr)):
            stack += children(node)


_HANDLERS: dict[type[ast.AST], Callable[[Any, Any, Scope], None]] = {
    ast.FunctionDef: _Builder.function,
    ast.AsyncFunctionDef: _Builder.function,
    ast.Lambda: _Builder.lambda_,
    ast.ClassDef: _Builder.class_,
    ast.ListComp: _Builder.comprehension,
    ast.SetComp: _Builder.comprehension,
    ast.DictComp: _Builder.comprehension,
    ast.GeneratorExp: _Builder.comprehension,
    ast.Import: _Builder.import_,
    ast.ImportFrom: _Builder.import_from,
    ast.Assign: _Builder.assign,
    ast.AnnAssign: _Builder.ann_assign,
    ast.AugAssign: _Builder.aug_assign,
    ast.NamedExpr: _Builder.named,
    ast.For: _Builder.for_,
    ast.AsyncFor: _Builder.for_,
    ast.With: _Builder.with_,
    ast.AsyncWith: _Builder.with_,
    ast.ExceptHandler: _Builder.handler,
    ast.Match: _Builder.match,
    ast.MatchAs: _Builder.pattern,
    ast.MatchStar: _Builder.pattern,
    ast.MatchMapping: _Builder.pattern,
    ast.Delete: _Builder.delete,
    ast.Subscript: _Builder.subscript,
    ast.Return: _Builder.return_,
    ast.Yield: _Builder.yield_,
    ast.YieldFrom: _Builder.yield_,
    ast.Global: _Builder.redirect,
    ast.Nonlocal: _Builder.redirect,
}
