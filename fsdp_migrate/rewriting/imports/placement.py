"""The import statements beside which a new name can be imported.

An import must have run before the name is used, but must not run where the file took care that
FSDP1 is not imported: under a ``try``, an ``if``, or only in functions.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fsdp_migrate.analysis.load_order import ImportStatement
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.edits import Import
from fsdp_migrate.rewriting.imports.import_path import ImportPath
from fsdp_migrate.syntax import string_annotations
from fsdp_migrate.syntax.scopes import Kind, Scope
from fsdp_migrate.syntax.trees import last_part, position

if TYPE_CHECKING:
    from fsdp_migrate.syntax.notebook_sources import Excerpt


class Placement:
    """Finds the import statements that are sure to have run wherever a new name is needed.

    ``removed`` are imports that will be gone. ``halved`` are ``if`` statements that lose one
    branch, so that the other is no condition any more.
    """

    def __init__(
        self,
        module: Module,
        needed: Sequence[Import],
        removed: set[ast.AST],
        halved: set[ast.If],
        local: frozenset[str],
    ) -> None:
        self.module = module
        self.removed = removed
        self.halved = halved
        self.paths = ImportPath(module, removed, local)
        self.fsdp1_imports = [
            s for s in self._imports_of(module.table.module) if self._imports_fsdp1(s)
        ]
        self.scopes = {need: self._find_scope(need) for need in needed}
        self.together: dict[tuple[Scope, str, str, str], list[Import]] = defaultdict(list)
        # A name that a function imports is its own everywhere in it.
        lost = {(n.local, self.scopes[n]) for n in needed if not self._already_run(n)}
        self.lazy: dict[Scope, list[Import]] = defaultdict(list)
        for need in needed:
            if (need.local, self.scopes[need]) in lost:
                self.scopes[need] = self._lazy_function(need) or module.table.module
                if self.scopes[need] is not module.table.module:
                    self.lazy[self.scopes[need]].append(need)
            key = (self.scopes[need], need.source, need.name, need.asname)
            self.together[key].append(need)

    def statements_for(self, need: Import) -> list[ImportStatement]:
        """The statements for a need, in the order of the file: those that serve all places which
        need the same name, if there are any."""
        scope, table = self.scopes[need], self.module.table
        set_at = self.paths.position(need, scope)
        if scope is not table.module:
            found = [] if need in self.lazy.get(scope, ()) else self._already_run(need)
            return [s for s in found if position(s) > set_at]
        every = self._imports_of(scope)
        if need.source.partition(".")[0] != "torch":
            every = [s for s in every if not self.module.loading.may_fail(s)]
        alike = self.together[scope, need.source, need.name, need.asname]
        if all(map(self._guarded, alike)):
            return self._guarded(need)
        loading = self.module.loading
        for group in (alike, [need]):
            sure = [s for s in every if all(loading.has_run(s, n.near) for n in group)]
            sure = [s for s in sure if position(s) > set_at]
            if self.module.source.excerpt is not None:
                sure = self._in_first_cell(group[0], sure, self.module.source.excerpt)
            if sure:
                return sure
        # Beside the import of what it replaces, which is as sure.
        beside = [s for s in every if self._imports_fsdp1(s) and loading.is_used(s, need.near)]
        return [s for s in beside if position(s) > set_at]

    def path_setter(self, need: Import) -> ast.stmt | None:
        """The statement that sets ``sys.path`` for a need which no import below it can join."""
        return self.paths.setter(need, self.scopes[need])

    def first_user(self, need: Import) -> ast.stmt | None:
        """The statement that needs a name first: the import goes in front of it where no import
        is sure to have run before."""
        scope = self.scopes[need]
        if scope is self.module.table.module:
            return self.module.loading.first(need.near)
        body = getattr(scope.node, "body", [])
        around = {a for n in self.lazy.get(scope, ()) for a in self.module.table.ancestors(n.near)}
        return next((statement for statement in body if statement in around), None)

    def _guarded(self, need: Import) -> list[ImportStatement]:
        """The imports beside FSDP1's, if a ``try``, an ``if`` or another block guards all of those.

        The new name may then be missing where FSDP1's are, and should not be imported elsewhere.
        """
        loading = self.module.loading
        if not self._needs_guard(need):
            return []
        types = self._is_type(need.near)
        running = [s for s in self.fsdp1_imports if not self._is_for_types(s)]
        guards = running or (self.fsdp1_imports if types else [])
        if not self._is_one_block(guards):
            return []
        every = self._imports_of(self.module.table.module)
        serving = [
            s
            for s in every
            if self.module.table.parents[s] is self.module.table.parents[guards[0]]
            and self._is_one_block([s, guards[0]])
            and (types or loading.serves(s, need.near))
            and position(s) > self.paths.position(need, self.module.table.module)
        ]
        return serving if any(s in guards for s in serving) else []

    def _needs_guard(self, need: Import) -> bool:
        """Whether an import fails without torch, or without what the file's own guards ask for."""
        top = need.source.partition(".")[0]
        if self.module.source.excerpt is not None or top in sys.stdlib_module_names:
            return False
        if top != "torch" or need.source.startswith("torch.distributed"):
            return True
        return not any(self._is_unguarded(s) for s in self._torch_imports())

    def _lazy_function(self, need: Import) -> Scope | None:
        """The function that imports a new name for itself, in a file that imports torch in
        functions only, or that guards FSDP1's names and does not use them here."""
        if not self._needs_guard(need) or self._guarded(need):
            return None
        of_torch = self._torch_imports()
        running = [s for s in of_torch if self._runs_at_loading(s)]
        guards = [s for s in self.fsdp1_imports if not self._is_for_types(s)]
        if not of_torch or (running and not self._is_one_block(guards)):
            return None
        scope = self.module.table.scope_of(need.near).function()
        while scope is not None and isinstance(scope.node, ast.Lambda) and scope.parent is not None:
            scope = scope.parent.function()
        return scope

    def _torch_imports(self) -> list[ImportStatement]:
        """The imports of torch, wherever they stand."""
        table = self.module.table
        nodes = {b.node for b in table.imports if b.qualified.partition(".")[0] == "torch"}
        return [s for s in table.import_statements if not nodes.isdisjoint(s.names)]

    def _runs_at_loading(self, statement: ImportStatement) -> bool:
        """Whether an import may run while the module is loaded."""
        function = self.module.table.scope_of(statement).function()
        return function is None and not self._is_for_types(statement)

    def _is_unguarded(self, statement: ImportStatement) -> bool:
        parent = self.module.table.parents[statement]
        return isinstance(parent, ast.Module) or parent in self.halved

    def _is_one_block(self, guards: Sequence[ImportStatement]) -> bool:
        """Whether there are imports, and all stand in one block below the level of the module."""
        blocks = {
            (self.module.table.parents[s], name)
            for s in guards
            for name, block in ast.iter_fields(self.module.table.parents[s])
            if isinstance(block, list) and s in block
        }
        return len(blocks) == 1 and not self._is_unguarded(guards[0])

    def _is_for_types(self, statement: ImportStatement) -> bool:
        """Whether an import stands in an ``if TYPE_CHECKING`` block."""
        parent = self.module.table.parents[statement]
        if not isinstance(parent, ast.If) or statement not in parent.body:
            return False
        return last_part(parent.test) == "TYPE_CHECKING"

    def _is_type(self, near: ast.AST) -> bool:
        """Whether a name is needed in an annotation that is not evaluated."""
        table = self.module.table
        if any(near is quoted.string for quoted in string_annotations.in_annotations(table)):
            return True
        inner = near
        for outer in table.ancestors(near) if table.postpones_annotations else ():
            if inner in (getattr(outer, "annotation", None), getattr(outer, "returns", None)):
                return True
            inner = outer
        return False

    def _find_scope(self, need: Import) -> Scope:
        """The scope that imports the FSDP names used at ``need.near``: a function that imports
        lazily keeps doing so."""
        table = self.module.table
        first = scope = table.scope_of(need.near)
        while scope is not table.module and scope.parent is not None:
            imports = [b for bs in scope.bindings.values() for b in bs if b.kind is Kind.IMPORT]
            hidden = scope.is_class and scope is not first  # from the functions in it
            if not hidden and any(b.qualified.startswith("torch.distributed") for b in imports):
                return scope
            scope = scope.parent
        return self._lazy_function(need) or table.module

    def _already_run(self, need: Import) -> list[ImportStatement]:
        found = self._imports_of(self.scopes[need])
        return [s for s in found if self.module.table.has_run(s, need.near)]

    def _imports_of(self, scope: Scope) -> list[ImportStatement]:
        table = self.module.table
        every = [s for s in table.import_statements if s not in self.removed]
        return sorted((s for s in every if table.scope_of(s) is scope), key=position)

    def _imports_fsdp1(self, statement: ImportStatement) -> bool:
        bindings = (b for b in self.module.table.imports if b.node in statement.names)
        return any(fsdp1.PACKAGE in binding.qualified for binding in bindings)

    def _in_first_cell(
        self, need: Import, found: list[ImportStatement], excerpt: Excerpt
    ) -> list[ImportStatement]:
        """Those in the first cell, up to the one ``need`` is in, that imports FSDP, or anything."""
        last = excerpt.piece(getattr(need.near, "lineno", 1)).line
        before = [s for s in found if excerpt.piece(s.lineno).line <= last]
        chosen = [s for s in before if self._imports_fsdp1(s)] or before
        cells = [excerpt.piece(s.lineno) for s in chosen]
        return [s for s in before if excerpt.piece(s.lineno) is cells[0]]
