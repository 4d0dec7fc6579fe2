"""Scopes, what binds each name in them, and where a name is looked up."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from fsdp_migrate.syntax.trees import FUNCTIONS

ScopeNode = (
    ast.Module
    | ast.FunctionDef
    | ast.AsyncFunctionDef
    | ast.ClassDef
    | ast.Lambda
    | ast.ListComp
    | ast.SetComp
    | ast.DictComp
    | ast.GeneratorExp
)


class Kind(Enum):
    """How a name (or a dotted path such as ``self.model``) got its value."""

    IMPORT = auto()
    ASSIGN = auto()
    AUGMENT = auto()
    PARAMETER = auto()
    FUNCTION = auto()
    CLASS = auto()
    ELEMENT = auto()  # the target of a for loop or a comprehension
    ENTER = auto()  # ``with x as name``
    DELETE = auto()
    OTHER = auto()  # except handlers, patterns


@dataclass(eq=False)
class Binding:
    """One binding of one name.

    ``value`` is the expression the value comes from: the right-hand side, the iterable of a loop,
    the context manager of a ``with``, a parameter's default. ``unpack`` says which element of it
    when the target is a tuple: ``(1,)`` for ``_, name = value``.
    """

    name: str
    kind: Kind
    node: ast.AST  # the statement, alias, arg or definition that binds
    scope: Scope
    value: ast.expr | None = None
    unpack: tuple[int, ...] = ()
    qualified: str = ""  # imports: the absolute dotted name


@dataclass(eq=False)
class Scope:
    node: ScopeNode
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    redirected: dict[str, str] = field(default_factory=dict)  # name -> "global" | "nonlocal"
    is_class: bool = field(init=False)
    is_function: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_class = isinstance(self.node, ast.ClassDef)
        self.is_function = isinstance(self.node, FUNCTIONS)

    def home(self) -> Scope:
        """The scope whose statements run here: of a function, a class or the module,
        comprehensions looked through."""
        scope = self
        while scope.parent is not None and not (scope.is_function or scope.is_class):
            scope = scope.parent
        return scope

    def is_free(self, name: str) -> bool:
        """Whether nothing in the statements that run here gives ``name`` a value."""
        scope, home = self, self.home()
        while name not in scope.bindings and name not in scope.redirected:
            if scope is home or scope.parent is None:
                return True
            scope = scope.parent
        return False

    def outwards(self) -> Iterator[Scope]:
        """This scope and those around it."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def module_scope(self) -> Scope:
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def function(self) -> Scope | None:
        """The innermost enclosing function scope, comprehensions looked through."""
        scope: Scope | None = self
        while scope is not None and not scope.is_function:
            scope = scope.parent
        return scope

    def lookup(self, name: str) -> Scope | None:
        """The scope whose binding a load of ``name`` here refers to; None for builtins."""
        if name in self.bindings and not self.redirected:
            return self  # as is most often asked
        scope: Scope | None = self  # a plain loop: nothing is asked more often
        while scope is not None:
            if name in scope.redirected:
                if scope.redirected[name] == "global":
                    top = scope.module_scope()
                    return top if name in top.bindings else None
            elif name in scope.bindings and (scope is self or not scope.is_class):
                return scope
            scope = scope.parent
        return None


def differ(every: Sequence[Binding]) -> bool:
    """Whether bindings of one name may give it different values, one of them by an import."""
    if len(every) < 2:
        return False
    imported = {b.qualified for b in every if b.kind is Kind.IMPORT}
    return bool(imported) and (len(imported) > 1 or any(b.kind is not Kind.IMPORT for b in every))


def watched(scope: Scope) -> list[str]:
    """The names of a scope of which a function inside must know which binding it finds."""
    of_module = not (scope.is_function or scope.is_class)
    return [
        name
        for name, every in scope.bindings.items()
        if differ(every) or (of_module and len(every) > 1)
    ]
