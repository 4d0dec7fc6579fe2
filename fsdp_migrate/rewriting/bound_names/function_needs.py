"""What functions need from outside of themselves, and what the functions that they call need."""

from __future__ import annotations

import ast
from collections.abc import Callable

from fsdp_migrate.rewriting.bound_names.state import Bindings, Definition, Key, is_definition
from fsdp_migrate.syntax.name_table import NameTable
from fsdp_migrate.syntax.scopes import Kind, Scope
from fsdp_migrate.syntax.trees import children

Needs = dict[Key, ast.Name]  # each name, and where it is read


class FunctionNeeds:
    """``read_body`` walks the body of a function and adds to its needs what it does not bind."""

    def __init__(
        self, table: NameTable, bindings: Bindings, read_body: Callable[[Scope, Needs], None]
    ) -> None:
        self.table = table
        self.bindings = bindings
        self.read_body = read_body
        self.reading = 0  # functions whose bodies are being read
        self.by_function: dict[Scope, Needs] = {}
        self.by_name: dict[Key, Needs] = {}
        self.by_name_directly: dict[Key, Needs] = {}
        self.inside: dict[Scope, list[Scope]] = {}
        for scope in table.scopes.values():
            if scope.parent is not None:
                self.inside.setdefault(scope.parent, []).append(scope)

    def of_function(self, scope: Scope) -> Needs:
        """What a function needs; its own names are looked up in its own order meanwhile."""
        if scope not in self.by_function:
            needs = self.by_function[scope] = {}
            self.reading += 1
            self.read_body(scope, needs)
            self.reading -= 1
        return self.by_function[scope]

    def of_name(self, key: Key) -> Needs:
        """All that what a name holds needs when it is called, and what that calls needs."""
        if key not in self.by_name:
            found: Needs = {}
            seen, stack = {key}, [key]
            while stack:
                for other, node in self._of_name_directly(stack.pop()).items():
                    found.setdefault(other, node)
                    if other not in seen:
                        seen.add(other)
                        stack.append(other)
            self.by_name[key] = found
        return self.by_name[key]

    def _of_name_directly(self, key: Key) -> Needs:
        known = self.by_name_directly.get(key)
        if known is not None:
            return known
        scope, name = key
        found: Needs = {}
        for binding in scope.bindings.get(name, ()):
            if isinstance(binding.node, Definition):
                functions = self.functions_in(self.table.scopes[binding.node])
            elif binding.kind is Kind.ASSIGN and binding.value is not None:
                mentioned, functions = self._mentioned_in(binding.value)
                for each, node in mentioned.items():
                    found.setdefault(each, node)
            else:
                continue
            for function in functions:
                for other, node in self.of_function(function).items():
                    if not self.bindings.is_bound_with(function, other):
                        found.setdefault(other, node)
        if not self.reading:  # else a function may have been read in part only
            self.by_name_directly[key] = found
        return found

    def _mentioned_in(self, value: ast.expr) -> tuple[Needs, list[Scope]]:
        """The functions that a value mentions, by name and as lambdas.

        A name is only followed when it leads to a function: what else the value is made from was
        read when it was made.
        """
        found: Needs = {}
        lambdas: list[Scope] = []
        stack: list[ast.AST] = [value]
        while stack:
            node = stack.pop()
            if isinstance(node, ast.Lambda):
                lambdas.append(self.table.scopes[node])
            elif isinstance(node, ast.Name):
                home = self.table.within[node].lookup(node.id)
                if home is not None and is_definition((home, node.id)):
                    found[home, node.id] = node
            else:
                stack += children(node)
        return found, lambdas

    def functions_in(self, scope: Scope) -> list[Scope]:
        """A function; all methods of a class."""
        if not scope.is_class:
            return [scope]
        inner = (s for s in self.inside.get(scope, ()) if s.is_function or s.is_class)
        return [each for s in inner for each in self.functions_in(s)]
