"""The abstract state: what is surely bound at a point of a file, and how branches change it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from fsdp_migrate.rewriting.bound_names.conditions import Atoms, atoms_of, is_steady, names_in
from fsdp_migrate.syntax.name_table import NameTable
from fsdp_migrate.syntax.scopes import Scope
from fsdp_migrate.syntax.trees import FUNCTIONS, walk

Key = tuple[Scope, str]  # a name of a scope
Fact = tuple[str, Atoms, Key]  # where the conditions are so, the name is bound
State = set[Key | Fact]
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def is_definition(key: Key) -> bool:
    """Whether a name is that of a function or a class."""
    return any(isinstance(b.node, Definition) for b in key[0].bindings.get(key[1], ()))


def key_of(name: str, scope: Scope) -> Key:
    """The scope in which a statement of ``scope`` binds a name: ``global`` names another."""
    redirect = scope.redirected.get(name)
    if redirect == "global":
        return scope.module_scope(), name
    if redirect == "nonlocal" and scope.parent is not None:
        return scope.parent.lookup(name) or scope, name
    return scope, name


def unbound_by(body: Sequence[ast.stmt], scope: Scope) -> State:
    """The names that statements may unbind, with ``del`` or behind ``except Error as name``."""
    found: State = set()
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Delete):
            found |= {key_of(t.id, scope) for t in node.targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(key_of(node.name, scope))
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.expr)):
            for name in ("body", "orelse", "handlers", "finalbody", "cases"):
                stack += getattr(node, name, ())
    return found


class Bindings:
    """Binds and unbinds names, and remembers what was bound together.

    What a branch binds is not sure behind it. But where the same condition is asked again, all that
    the branch bound is bound; and who can call a function that the branch defines has come through
    the branch, and so has the rest of what it bound.
    """

    def __init__(self, table: NameTable) -> None:
        self.table = table
        self.conditions: dict[Atoms, frozenset[str]] = {}  # of facts -> the names they ask
        self.unbound: State = set()  # what was unbound anywhere
        self._atoms: dict[tuple[ast.expr, bool], Atoms] = {}
        self._with_name: dict[Key, State] = {}  # what is bound wherever a function's name is
        # The same for each of several functions of one name, which branches define.
        self._with_function: dict[Scope, State] = {}

    def bind(self, name: str, state: State, scope: Scope) -> None:
        state.add(key_of(name, scope))
        stale = {atoms for atoms, names in self.conditions.items() if name in names}
        if stale:
            state -= {fact for fact in state if len(fact) == 3 and fact[1] in stale}

    def unbind(self, name: str, state: State, scope: Scope) -> None:
        key = key_of(name, scope)
        state.discard(key)
        self.unbound.add(key)

    def where(self, test: ast.expr, holds: bool, state: State) -> State:
        """The state in a branch, where a condition holds or does not.

        What is bound where ``a and b`` hold is bound where ``b`` holds in the branch of ``a``.
        """
        inner = set(state)
        if self.conditions:
            atoms = self._atoms_of(test, holds)
            for fact in state:
                if len(fact) == 2 or atoms.isdisjoint(fact[1]):
                    continue
                rest = fact[1] - atoms
                inner.add(("if", rest, fact[2]) if rest else fact[2])
                if rest and rest not in self.conditions:
                    self.conditions[rest] = names_in(rest)
        return inner

    def _atoms_of(self, test: ast.expr, holds: bool) -> Atoms:
        """As :func:`atoms_of`; a branch is gone through for every call of its function."""
        found = self._atoms.get((test, holds))
        if found is None:
            found = self._atoms[test, holds] = atoms_of(test, holds)
        return found

    def join_branches(self, test: ast.expr, yes: State | None, no: State | None) -> State | None:
        """The state behind an ``if``, with what each branch binds as facts about its condition."""
        joined = self.join([yes, no])
        if yes is not None and no is not None and joined is not None and is_steady(test):
            for bound, other, holds in ((yes, no, True), (no, yes, False)):
                atoms = self._atoms_of(test, holds)
                self.conditions[atoms] = names_in(atoms)
                joined |= {("if", atoms, key) for key in bound - other if len(key) == 2}
        return joined

    def join(self, states: Iterable[State | None]) -> State | None:
        """What is bound on every way that goes on; None where none does."""
        alive = [state for state in states if state is not None]
        if not alive:
            return None
        joined = set.intersection(*alive)
        for state in alive:
            for key in state - joined:
                if len(key) == 2 and is_definition(key):
                    self._with_name[key] = self._with_name.get(key, state) & state
        return joined

    def note_functions(self, body: Sequence[ast.stmt], end: State) -> None:
        """Remember what is bound at the end of a branch for the functions that it defines."""
        for statement in body:
            for node in walk(statement):
                inner = self.table.scopes.get(node)
                if inner is not None and inner.is_function:
                    self._with_function.setdefault(inner, set()).update(end)

    def bound_with_name(self, key: Key) -> State:
        """What is surely bound where the name of a function or class is."""
        return self._with_name.get(key, set()) - self.unbound

    def is_bound_with(self, function: Scope, key: Key) -> bool:
        """Whether a name is surely bound where a function can be called."""
        return key in self._with_function.get(function, ()) and key not in self.unbound
