"""Decides which imports an edited file gets, where each stands, and which imports go."""

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
from fsdp_migrate.rewriting.imports.isort_order import find_neighbour, group_by_source, source_of
from fsdp_migrate.rewriting.imports.placement import Placement
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.trees import walk


@dataclass
class StatementPlan:
    """What happens to one import statement."""

    dropped: set[ast.alias] = field(default_factory=set)
    added: list[Import] = field(default_factory=list)  # names that join a ``from`` import
    preceding: list[Import] = field(default_factory=list)  # new statements before this one
    following: list[Import] = field(default_factory=list)  # and after it


@dataclass
class ImportPlan:
    """What happens to the imports of a file."""

    statements: dict[ast.AST, StatementPlan] = field(
        default_factory=lambda: defaultdict(StatementPlan)
    )
    first: list[Import] = field(default_factory=list)  # of a module without any import
    above: dict[ast.stmt, list[Import]] = field(  # in front of other statements, which need them
        default_factory=lambda: defaultdict(list)
    )
    below: dict[ast.stmt, list[Import]] = field(  # behind what sets the path for them
        default_factory=lambda: defaultdict(list)
    )
    local: frozenset[str] = frozenset()
    single_line: bool = False  # each name has a statement of its own

    def new_code(self, needs: Sequence[Import]) -> list[Code]:
        """The imports beside a statement that is no import."""
        return [Code(import_text(group), {}) for group in self.grouped(needs)]

    def grouped(self, needs: Sequence[Import]) -> list[list[Import]]:
        """Imports that one statement brings in each."""
        groups = group_by_source(needs)
        return [[need] for group in groups for need in group] if self.single_line else groups

    def new_from_same_source(self, need: Import) -> Iterator[tuple[ast.stmt, list[Import]]]:
        """The new ``from`` imports of the same module, and what each stands beside."""
        for statement, plan in self.statements.items():
            for new in (plan.preceding, plan.following):
                if _has_source(new, need):
                    yield of_kind(statement, ast.stmt), new
        for statement, new in (*self.above.items(), *self.below.items()):
            if _has_source(new, need):
                yield statement, new


def _has_source(new: Sequence[Import], need: Import) -> bool:
    return bool(need.name) and any(n.name and n.source == need.source for n in new)


def plan_imports(
    module: Module,
    edits: Sequence[Edit],
    needed: Sequence[Import],
    local: frozenset[str] = frozenset(),
    *,
    single_line: bool = False,
) -> ImportPlan:
    """Decide where each needed name is imported, and take out the imports that edits name.

    ``local`` are the top-level names of the project's own packages, which come last.
    """
    plan = ImportPlan(local=local, single_line=single_line)
    for alias in (e.alias for e in edits if isinstance(e, RemoveImport)):
        plan.statements[module.table.parents[alias]].dropped.add(alias)
    halved = {e.node for e in edits if isinstance(e, DropBranch | DropElse)}
    placement = Placement(module, needed, _removed_statements(edits), halved, local)
    found = {need: placement.statements_for(need) for need in dict.fromkeys(needed)}
    for need in sorted(found, key=lambda need: len(found[need])):
        _add(_find_list(need, found[need], plan, placement), need)
    return plan


def _removed_statements(edits: Sequence[Edit]) -> set[ast.AST]:
    """Import statements that edits remove together with what is around them."""
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


def _add(imports: list[Import], need: Import) -> None:
    """Import a name once at one place, however many statements need it there."""
    written = {(n.source, n.name, n.asname) for n in imports}
    if (need.source, need.name, need.asname) not in written:
        imports.append(need)


def _find_list(
    need: Import, statements: list[ImportStatement], plan: ImportPlan, placement: Placement
) -> list[Import]:
    """The list of the plan that a new name joins: beside one of the statements that have run where
    it is needed, if there are any."""
    for statement in statements:
        named = need.name and isinstance(statement, ast.ImportFrom)
        joins = named and not plan.single_line and not _is_star(statement)
        if joins and source_of(statement) == need.source:
            return plan.statements[statement].added
    loading = placement.module.loading
    for beside, new in plan.new_from_same_source(need):
        if beside in statements or (
            new is plan.above.get(beside) and loading.has_run(beside, need.near, itself=True)
        ):
            return new
        if new is plan.below.get(beside) and beside is placement.path_setter(need):
            return new
    neighbour = find_neighbour(statements, need, plan.local, by_name=plan.single_line)
    if neighbour is None:
        setter = placement.path_setter(need)
        if setter is not None:
            return plan.below[setter]
        user = placement.first_user(need)
        return plan.first if user is None else plan.above[user]
    beside_it = plan.statements[neighbour.statement]
    return beside_it.preceding if neighbour.before else beside_it.following


def _is_star(statement: ImportStatement) -> bool:
    return any(alias.name == "*" for alias in statement.names)
