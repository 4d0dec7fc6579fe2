"""Where a file sets ``sys.path``: modules of the project can be imported only behind that."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning import support_library
from fsdp_migrate.planning.edits import Import
from fsdp_migrate.rewriting.imports.isort_order import section_of, source_of
from fsdp_migrate.syntax.scopes import Scope
from fsdp_migrate.syntax.trees import asks_for_main, position

PATH, ADDS_TO_IT = "sys.path", "site.addsitedir"
METHODS = frozenset({"append", "extend", "insert"})
START = (0, 0)


class ImportPath:
    """The statements of a file that set ``sys.path``."""

    def __init__(self, module: Module, removed: Collection[ast.AST], local: frozenset[str]) -> None:
        """``removed`` are imports that will be gone; ``local`` are the project's packages."""
        self.module = module
        self.removed = removed
        self.local = local
        self._edits = list(self._find_edits())

    def position(self, need: Import, scope: Scope) -> tuple[int, int]:
        """Where the path is set last before a need which ``scope`` imports."""
        found = self._last(need, scope)
        return START if found is None else position(found[0])

    def setter(self, need: Import, scope: Scope) -> ast.stmt | None:
        """The statement in the body of ``scope`` that sets it, if the need stands behind that."""
        found, first = self._last(need, scope), self._first(need, scope)
        if found is None or (first is not None and first in ast.walk(found[1])):
            return None
        return found[1]

    def _last(self, need: Import, scope: Scope) -> tuple[ast.stmt, ast.stmt] | None:
        """The last statement that counts, and the one around it in the body of ``scope``."""
        ours = support_library.is_spelled(f"{need.source}.{need.name}")
        if need.source.startswith(".") or not (ours or section_of(need.source, self.local) == 3):
            return None
        table = self.module.table
        body: list[ast.stmt] = getattr(scope.node, "body", [])
        ends = [self._first(need, scope)]
        # What an import of the same package does not need, one beside it does not need either.
        top = need.source.partition(".")[0]
        ends += [
            s
            for s in table.import_statements
            if s in body and s not in self.removed and source_of(s).partition(".")[0] == top
        ]
        found = []
        for node in self._edits:
            own = table.scope_of(node).function() is scope.function()
            event = table.statement(node) if own else self.module.loading.first(node)
            if event is None or (not own and scope is not table.module):
                continue
            around = next((a for a in (event, *table.ancestors(event)) if a in body), None)
            if (
                isinstance(around, ast.stmt)
                and not asks_for_main(around)
                and all(position(event) < position(end) for end in ends if end is not None)
            ):
                found.append((event, around))
        return max(found, key=lambda pair: position(pair[0]), default=None)

    def _first(self, need: Import, scope: Scope) -> ast.stmt | None:
        """The first statement that needs an import in ``scope``."""
        table = self.module.table
        if scope is table.module:
            return self.module.loading.first(need.near)
        return table.statement(need.near)

    def _find_edits(self) -> Iterator[ast.expr]:
        """What of an expression changes the path, by any name that the file has for it."""
        table = self.module.table
        names = {b.name for b in table.imports if b.qualified in (PATH, ADDS_TO_IT)}
        attributes = table.attributes_by_name.of({"path", "addsitedir"})
        every: list[ast.Attribute | ast.Name] = [*attributes, *table.names_by_id.of(names)]
        found = [n for n in every if not table.qualify(n).isdisjoint((PATH, ADDS_TO_IT))]
        for node in found:
            parent = table.parents[node]
            if isinstance(parent, ast.Assign) and parent.value is node:
                targets = {t.id for t in parent.targets if isinstance(t, ast.Name)}
                named = [n for n in table.names_by_id.of(targets) if n not in found]
                found += [n for n in named if isinstance(n.ctx, ast.Load)]
            elif _changes(node, parent) or ADDS_TO_IT in table.qualify(node):
                yield node


def _changes(path: ast.Attribute | ast.Name, parent: ast.AST) -> bool:
    match parent:
        case ast.Attribute(attr=method):
            return method in METHODS
        case ast.Subscript(value=value, ctx=context) if value is path:
            return not isinstance(context, ast.Load)
    return not isinstance(path.ctx, ast.Load)
