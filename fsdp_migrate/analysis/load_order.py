"""What has surely run by the time that a place is reached while a module is loaded."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass, field

from fsdp_migrate.syntax.name_table import NameTable
from fsdp_migrate.syntax.trees import Definition, block_of, position

ImportStatement = ast.Import | ast.ImportFrom


@dataclass(eq=False)
class Loading:
    """The order in which the statements of one module run."""

    table: NameTable
    _events: dict[ast.AST, frozenset[ast.stmt]] = field(default_factory=dict)

    def has_run(self, statement: ast.stmt, near: ast.AST, *, itself: bool = False) -> bool:
        """Whether a statement at module level has surely run wherever ``near`` is reached.

        With ``itself``, whether what stands in front of it has.
        """
        place = self._settled(statement)
        events = self._reached_at(near)
        if not events:  # not before the module has been loaded
            return self._is_beside(place, near)
        return all(
            self.table.has_run(place, event) and (itself or event is not place) for event in events
        )

    def first(self, near: ast.AST) -> ast.stmt | None:
        """The statement at module level that reaches ``near`` before any other does."""
        events = self._reached_at(near)
        found = [e for e in events if all(self.table.has_run(e, other) for other in events)]
        return found[0] if found else None

    def serves(self, statement: ast.stmt, near: ast.AST) -> bool:
        """Whether what an import at module level binds may be used at ``near``.

        It has surely run there, or the code there uses an import of the same block already.
        """
        return self.has_run(statement, near) or self.is_used(statement, near)

    def is_used(self, statement: ast.stmt, near: ast.AST) -> bool:
        """Whether the function that ``near`` is in, or its statement where it is in none, reads
        what an import imports, or another in its block that stands below it."""
        table = self.table
        block, place = table.parents[statement], position(statement)
        top = table.module.bindings
        bound = {
            b.name
            for b in table.imports
            if table.parents[table.parents[b.node]] is block
            and all(position(table.statement(o.node)) >= place for o in top.get(b.name, ()))
        }
        function = table.scope_of(near).function()
        around = table.statement(near)
        for name in table.names_by_id.of(bound):
            reading = table.within[name]
            if isinstance(name.ctx, ast.Load) and reading.lookup(name.id) is table.module:
                here = reading.function() is function
                if here and (function is not None or table.statement(name) is around):
                    return True
        return False

    def may_fail(self, statement: ast.stmt) -> bool:
        """Whether an import stands in a ``try``, where torch's do not fail and others may."""
        return self._settled(statement) is not statement

    def _settled(self, statement: ast.stmt) -> ast.stmt:
        """The statement after which an import has surely run: the ``try`` around it, if that begins
        with imports that do not fail."""
        parent = self.table.parents[statement]
        if isinstance(parent, ast.Try | ast.TryStar) and statement in parent.body:
            before = parent.body[: parent.body.index(statement) + 1]
            if all(isinstance(s, ImportStatement) and is_installed(s) for s in before):
                return parent
        return statement

    def _is_beside(self, statement: ast.stmt, near: ast.AST) -> bool:
        """Whether ``near`` stands in the block of a statement, wherever in it."""
        parent = self.table.parents[statement]
        if isinstance(parent, ast.Module):
            return True
        block = block_of(parent, statement)
        return any(node in block for node in self.table.ancestors(near))

    def _reached_at(self, near: ast.AST) -> frozenset[ast.stmt]:
        """The statements at module level that may evaluate ``near``, or bring it about.

        There are none where it is in a function that nothing calls while the module is loaded.
        """
        start = self._outermost(near)
        if not isinstance(start, Definition):
            return frozenset({self.table.statement(start)})
        known = self._events.get(start)
        if known is None:
            known = self._events[start] = frozenset(self._events_of(start))
        return known

    def _events_of(self, start: Definition) -> set[ast.stmt]:
        found: set[ast.stmt] = set()
        seen: set[Definition] = {start}
        stack: list[Definition] = [start]
        while stack:
            definition = stack.pop()
            if _may_be_called_as_made(definition):
                found.add(definition)
            found.update(self._imports_below(definition))
            for name in self.table.names_by_id.named(definition.name):
                scope = self.table.within[name].lookup(name.id)
                if not isinstance(name.ctx, ast.Load) or scope is not self.table.module:
                    continue
                user = self._outermost(name)
                if not isinstance(user, Definition):
                    if not is_in_front(name, self.table):
                        found.add(self.table.statement(name))
                elif user not in seen:
                    seen.add(user)
                    stack.append(user)
        return found

    def _imports_below(self, definition: Definition) -> list[ImportStatement]:
        """The imports of what may import this module back, and call what there is of it by then."""
        return [
            statement
            for statement in self.table.import_statements
            if statement.lineno > definition.lineno
            and not is_installed(statement)
            and self.table.scope_of(statement).function() is None
        ]

    def _outermost(self, node: ast.AST) -> ast.AST:
        """The outermost function that a node is evaluated in, or the class with that method; a
        lambda, which may be called where it stands; else the node."""
        functions = [s for s in self.table.scope_of(node).outwards() if s.is_function]
        if not functions:
            return node
        found: ast.AST = functions[-1].node
        if isinstance(found, ast.Lambda):
            return found
        for around in self.table.ancestors(found):
            if isinstance(around, ast.ClassDef):
                found = around
        return found


def is_in_front(name: ast.Name, table: NameTable) -> bool:
    """Whether a module asks for a name in front of the one statement that binds it: it finds
    nothing, and stops there."""
    bound = table.module.bindings.get(name.id, ())
    if len(bound) != 1 or table.scope_of(name).function() is not None:
        return False
    statement = table.statement(bound[0].node)
    in_order = isinstance(table.parents[statement], ast.Module)
    return in_order and position(name) < position(statement)


def _may_be_called_as_made(definition: Definition) -> bool:
    """Whether a decorator, a base class or a metaclass gets hold of a definition."""
    if isinstance(definition, ast.ClassDef) and (definition.bases or definition.keywords):
        return True
    return bool(definition.decorator_list)


def is_installed(statement: ImportStatement) -> bool:
    """Whether an import is of Python's library or of torch: it works, and knows no project."""
    if isinstance(statement, ast.ImportFrom):
        named = ["." if statement.level else statement.module or ""]
    else:
        named = [alias.name for alias in statement.names]
    tops = {name.split(".")[0] for name in named}
    return tops <= {"torch", *sys.stdlib_module_names}
