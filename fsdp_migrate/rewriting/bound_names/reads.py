"""Reads of names: each is looked up in what is surely bound, with all that it makes run."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass, field

from fsdp_migrate.analysis.load_order import is_in_front
from fsdp_migrate.rewriting.bound_names.function_needs import FunctionNeeds, Needs
from fsdp_migrate.rewriting.bound_names.state import Bindings, Definition, Key, State
from fsdp_migrate.syntax.name_table import NameTable
from fsdp_migrate.syntax.scopes import Kind, Scope
from fsdp_migrate.syntax.trees import COMPREHENSIONS

MODULE_ATTRIBUTES = frozenset(
    ("__file__", "__name__", "__doc__", "__path__", "__spec__", "__package__", "__loader__")
)
ALWAYS_BOUND = frozenset(dir(builtins)) | MODULE_ATTRIBUTES
DIRECTLY = "directly"  # the event of a read in the statements that bind the name


@dataclass(frozen=True)
class UnsureRead:
    """A read of a name that may be bound nowhere by then."""

    name: str
    place: str  # the functions and classes that the read stands in
    event: str  # what brings the read about
    imported: bool = field(compare=False)  # whether imports are all that bind the name
    line: int = field(compare=False)


@dataclass
class Reads:
    """Looks reads up, and collects those that are unsure.

    A name that the owner does not bind itself is no unsure read yet but a need of the owner: it is
    looked up where the owner is called.
    """

    table: NameTable
    bindings: Bindings
    functions: FunctionNeeds
    owner: Scope  # the function whose statements are being read, or the module
    needs: Needs = field(default_factory=dict)  # what the owner needs from outside
    unsure: set[UnsureRead] = field(default_factory=set)

    def read(self, node: ast.Name, state: State, scope: Scope) -> None:
        """A name is read: it must be bound, and all that runs when what it holds is called."""
        home = scope.lookup(node.id)
        if home is None or isinstance(home.node, COMPREHENSIONS):
            return
        if home.is_class and home is scope and (home, node.id) not in state:
            # A class body that has not bound a name yet looks for it further out.
            outer = home.parent.lookup(node.id) if home.parent is not None else None
            home = outer or home
        key = (home, node.id)
        self._require(key, node, DIRECTLY, state)
        if self._is_own(key) and not (home is self.table.module and is_in_front(node, self.table)):
            self.call(key, f"by {node.id}", state)

    def call(self, key: Key, event: str, state: State) -> None:
        """Look up what runs when ``key`` is called, or taken to where it may be."""
        needs = self.functions.of_name(key)
        if needs.keys() <= state:
            return
        state = state | self.bindings.bound_with_name(key)
        for other, node in needs.items():
            self._require(other, node, event, state)

    def call_unnamed(self, made: Scope, event: str, state: State) -> None:
        """Look up what a function needs, or a class in its methods, that may be called here
        without its name: by a decorator, or a base class."""
        for function in self.functions.functions_in(made):
            for key, node in self.functions.of_function(function).items():
                self._require(key, node, event, state)
                self.call(key, event, state)

    def call_later(self, function: Scope, state: State) -> None:
        """Look up what a function needs that is called when the module has been loaded."""
        module = self.table.module
        needs = self.functions.of_function(function)
        lost = [key for key in needs if key[0] is module and key not in state]
        if not lost:
            return
        outer: list[ast.AST] = [function.node, *self.table.ancestors(function.node)]
        name = next((n.name for n in reversed(outer) if isinstance(n, Definition)), "")
        companions = self.bindings.bound_with_name((module, name))
        for key in lost:
            if key not in companions and not self.bindings.is_bound_with(function, key):
                self._report(key, needs[key], "later")

    def _require(self, key: Key, node: ast.Name, event: str, state: State) -> None:
        """A name that is not surely bound is reported where the owner binds it, else a need."""
        if key in state:
            return
        if self._is_own(key):
            self._report(key, node, event)
        else:
            self.needs.setdefault(key, node)

    def _is_own(self, key: Key) -> bool:
        """Whether the statements that are being read bind the name, not those around them."""
        return key[0].function() is self.owner.function()

    def _report(self, key: Key, node: ast.Name, event: str) -> None:
        scope, name = key
        if name in ALWAYS_BOUND and (scope is self.table.module or scope.is_class):
            return
        imported = all(b.kind is Kind.IMPORT for b in scope.bindings.get(name, ()))
        place = place_of(node, self.table)
        self.unsure.add(UnsureRead(name, place, event, imported, node.lineno))


def place_of(node: ast.AST, table: NameTable) -> str:
    """The functions and classes that a node stands in, by their names."""
    outer = [n.name for n in table.ancestors(node) if isinstance(n, Definition)]
    return ".".join(reversed(outer))
