"""Imports: added where the file keeps them, dropped when an edit took away their last use."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fsdp_migrate.analysis.load_order import ImportStatement
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.edits import (
    Code,
    DropBranch,
    DropElse,
    Edit,
    Import,
    RemoveImport,
    ReplaceStatement,
)
from fsdp_migrate.rewriting.imports.import_statements import import_text
from fsdp_migrate.rewriting.imports.isort_order import (
    find_neighbour,
    group_by_source,
)
from fsdp_migrate.rewriting.imports.placement import Places
from fsdp_migrate.rewriting.imports.unused import unused_after
from fsdp_migrate.syntax.scopes import walk


@dataclass
class StatementPlan:
    dropped: set[ast.alias] = field(default_factory=set)
    added: list[Import] = field(default_factory=list)  # names joining a ``from`` import
    preceding: list[Import] = field(default_factory=list)  # new statements before this one
    following: list[Import] = field(default_factory=list)  # and after it


@dataclass
class ImportPlan:
    statements: dict[ast.AST, StatementPlan] = field(
        default_factory=lambda: defaultdict(StatementPlan)
    )
    first: list[Import] = field(default_factory=list)  # a module without any import
    above: dict[ast.stmt, list[Import]] = field(  # in front of what needs them
        default_factory=lambda: defaultdict(list)
    )
    local: frozenset[str] = frozenset()

    @staticmethod
    def add(listed: list[Import], need: Import) -> None:
        """Import a name once at one place, however many statements need it there."""
        written = {(n.source, n.name, n.asname) for n in listed}
        if (need.source, need.name, need.asname) not in written:
            listed.append(need)

    def new(self, need: Import) -> Iterator[tuple[ast.stmt, list[Import]]]:
        """The new statements that import from the same module, and what each stands beside."""
        for statement, plan in self.statements.items():
            for listed in (plan.preceding, plan.following):
                if need.name and any(n.name and n.source == need.source for n in listed):
                    assert isinstance(statement, ast.stmt)
                    yield statement, listed
        for statement, listed in self.above.items():
            if need.name and any(n.name and n.source == need.source for n in listed):
                yield statement, listed

    def code(self, statement: ast.stmt) -> list[Code]:
        """The imports in front of a statement that is none."""
        return [Code(import_text(group), {}) for group in group_by_source(self.above[statement])]


def plan(
    module: Module,
    edits: Sequence[Edit],
    needed: Sequence[Import],
    local: frozenset[str] = frozenset(),
    asked_for: frozenset[str] = frozenset(),
) -> ImportPlan:
    """Decide where each needed name is imported and which imports have lost their last use.

    ``local`` are the top-level names of the project's own packages, which come last; ``asked_for``
    the names that other modules import from this one.
    """
    result = ImportPlan(local=local)
    for edit in edits:
        if isinstance(edit, RemoveImport):
            statement = module.table.parents[edit.alias]
            result.statements[statement].dropped.add(edit.alias)
    for binding in unused_after(module, edits, asked_for):
        alias = binding.node
        assert isinstance(alias, ast.alias)
        statement = module.table.parents[alias]
        result.statements[statement].dropped.add(alias)
    going = _going(edits)
    open_ = {e.node for e in edits if isinstance(e, DropBranch | DropElse)}
    places = Places(module, needed, going, open_, local)
    found = {need: places.of(need) for need in dict.fromkeys(needed)}
    for need in sorted(found, key=lambda need: len(found[need])):
        _place(module, need, found[need], result, places)
    return result


def _going(edits: Sequence[Edit]) -> set[ast.AST]:
    """Import statements in the parts of ``if`` chains that are removed."""
    parts = [e.node.body for e in edits if isinstance(e, DropBranch)]
    parts += [e.node.orelse for e in edits if isinstance(e, DropElse)]
    parts += [[e.node] for e in edits if isinstance(e, ReplaceStatement) and not e.codes]
    return {
        node
        for part in parts
        for statement in part
        for node in walk(statement)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }


def _place(
    module: Module,
    need: Import,
    statements: list[ImportStatement],
    result: ImportPlan,
    places: Places,
) -> None:
    """Import a name beside one of the statements that have run where it is needed."""
    same = [
        s
        for s in statements
        if need.name and isinstance(s, ast.ImportFrom) and _same_source(module, s, need)
    ]
    if same:
        result.add(result.statements[same[0]].added, need)
        return
    for beside, listed in result.new(need):
        if beside in statements or (
            beside in result.above and module.loading.has_run(beside, need.near, itself=True)
        ):
            result.add(listed, need)
            return
    anchor = find_neighbour(statements, need, places.local)
    in_front = places.in_front(need) if anchor is None else None
    if in_front is not None:
        result.add(result.above[in_front], need)
    elif anchor is None:
        result.add(result.first, need)
    else:
        plan = result.statements[anchor.statement]
        result.add(plan.preceding if anchor.before else plan.following, need)


def _same_source(module: Module, statement: ast.ImportFrom, need: Import) -> bool:
    written = "." * statement.level + (statement.module or "")
    star = any(alias.name == "*" for alias in statement.names)
    return written == need.source and not star
