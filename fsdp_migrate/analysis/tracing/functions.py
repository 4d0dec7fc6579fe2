"""What the definition of a function tells, and which argument of a call a parameter gets."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import FunctionNode, Partial
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import walk


def class_of_method(function: FunctionNode, module: Module) -> ast.ClassDef | None:
    """The class in whose body a function stands."""
    parent = module.table.parents.get(function)
    return parent if isinstance(parent, ast.ClassDef) else None


def is_self(node: ast.expr, module: Module) -> bool:
    """Whether a name is the first parameter of the method that it stands in."""
    if not isinstance(node, ast.Name):
        return False
    scope = module.table.within[node].function()
    if scope is None or not isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    parameters = [*scope.node.args.posonlyargs, *scope.node.args.args]
    return bool(
        parameters
        and parameters[0].arg == node.id
        and class_of_method(scope.node, module) is not None
    )


def has_decorator(node: ast.AST, *names: str) -> bool:
    """Whether one of the decorators has one of these last names."""
    for decorator in getattr(node, "decorator_list", ()):
        if last_name(decorator.func if isinstance(decorator, ast.Call) else decorator) in names:
            return True
    return False


def is_static(node: FunctionNode) -> bool:
    return has_decorator(node, "staticmethod")


def is_dataclass(node: ast.ClassDef) -> bool:
    return has_decorator(node, "dataclass")


def is_given_fields(node: ast.ClassDef) -> bool:
    """Whether a class is made of values for its fields: a dataclass, or one by ``attrs``."""
    return is_dataclass(node) or has_decorator(node, "define", "mutable", "frozen")


def exits(
    function: ast.FunctionDef | ast.AsyncFunctionDef, module: Module
) -> tuple[list[ast.Return], bool]:
    """The return statements of a function, nested functions excluded, and whether it yields."""
    table = module.table
    return table.returns.get(function, []), function in table.yields


def argument_of(
    call: ast.Call, function: FunctionNode, name: str, *, bound: bool
) -> ast.expr | None:
    """The expression ``call`` passes for parameter ``name``; None when it passes none."""
    return _given(call.args, call.keywords, function, name, bound=bound)


def _given(
    placed: Sequence[ast.expr],
    keywords: Sequence[ast.keyword],
    function: FunctionNode,
    name: str,
    *,
    bound: bool,
) -> ast.expr | None:
    for keyword in keywords:
        if keyword.arg == name:
            return keyword.value
    index = _place(function, name, bound=bound)
    if index is None or any(isinstance(a, ast.Starred) for a in placed[: index + 1]):
        return None
    return placed[index] if index < len(placed) else None


def _place(function: FunctionNode, name: str, *, bound: bool) -> int | None:
    """Which positional argument is for a parameter; None if none is."""
    positional = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if name not in positional[1 if bound else 0 :]:
        return None
    return positional.index(name) - (1 if bound else 0)


def default_of(arg: ast.arg, function: FunctionNode) -> ast.expr | None:
    args = function.args
    positional = [*args.posonlyargs, *args.args]
    if arg in positional:
        index = positional.index(arg) - (len(positional) - len(args.defaults))
        return args.defaults[index] if index >= 0 else None
    if arg in args.kwonlyargs:
        return args.kw_defaults[args.kwonlyargs.index(arg)]
    return None


def asserted(name: str, function: FunctionNode) -> ast.expr | None:
    """What a function insists on for a parameter: ``X`` of ``assert kind == X`` at its top.

    None if it is given another value first, or is not asked about.
    """
    body = function.body if isinstance(function.body, list) else []
    for index, statement in enumerate(body):
        match statement:
            case ast.Assert(
                test=ast.Compare(
                    left=ast.Name(id=asked), ops=[ast.Eq() | ast.Is()], comparators=[only]
                )
            ) if asked == name:
                if not isinstance(only, (ast.Attribute, ast.Constant)):
                    return None
                return None if any(_stores(name, each) for each in body[:index]) else only
    return None


def _stores(name: str, statement: ast.stmt) -> bool:
    names = (n for n in walk(statement) if isinstance(n, ast.Name) and n.id == name)
    return any(isinstance(n.ctx, ast.Store) for n in names)


def gives_unknown_arguments(call: ast.Call) -> bool:
    """Whether a call gives ``*args`` or ``**kwargs``."""
    return any(isinstance(a, ast.Starred) for a in call.args) or any(
        k.arg is None for k in call.keywords
    )


@dataclass(frozen=True)
class CallSite:
    """A call that may run a function; ``spawned``: by ``mp.spawn(function, args)``; ``configured``:
    by ``hydra.utils.instantiate(config, ...)``; ``handed``: what something else runs it with, such
    as ``pool.submit(function, x)``.

    Of a function, or of what ``partial`` made of it.
    """

    call: ast.Call
    module: Module
    bound: bool  # the first parameter is filled by the receiver
    spawned: bool = False
    partial: Partial | None = None
    configured: bool = False
    handed: tuple[ast.expr, ...] | None = None

    @property
    def is_by_another(self) -> bool:
        """Whether something else calls the function, which was given to it."""
        return self.spawned or self.handed is not None

    def argument(self, function: FunctionNode, name: str) -> ast.expr | None:
        """What the call passes for a parameter, as it stands in the call's module.

        None when it passes nothing; a partial may all the same, see :meth:`kept`.
        """
        kept = self.kept(function, name)
        if kept is not None and self.partial is not None:
            by_name = [k.value for k in self.call.keywords if k.arg == name]
            here = [kept] if self.partial.module is self.module else []
            return next(iter([*by_name, *here]), None)
        named = not self.spawned and (self.handed is None or bool(self.call.args))
        keywords = self.call.keywords if named else []
        return _given(self.positional, keywords, function, name, bound=self.bound)

    def kept(self, function: FunctionNode, name: str) -> ast.expr | None:
        """What the partial passes for a parameter, as it stands in the partial's module."""
        if self.partial is None:
            return None
        placed, keywords = self.partial.placed, self.partial.call.keywords
        return _given(placed, keywords, function, name, bound=self.bound)

    @property
    def positional(self) -> list[ast.expr]:
        """The positional arguments that the function gets."""
        if self.partial is not None:
            return [*self.partial.placed, *self.call.args]
        if self.handed is not None:
            return [*self.handed]
        if self.configured:
            return self.call.args[1:]
        if not self.spawned:
            return self.call.args
        packed = next((k.value for k in self.call.keywords if k.arg == "args"), None)
        if packed is None and len(self.call.args) > 1:
            packed = self.call.args[1]
        if isinstance(packed, ast.Tuple):
            return [self.call.args[0], *packed.elts]
        rest = [] if packed is None else [ast.Starred(packed)]
        return [self.call.args[0], *rest]

    def place(self, function: FunctionNode, name: str) -> int | None:
        """Which positional argument is for a parameter; None if none is."""
        return _place(function, name, bound=self.bound)
