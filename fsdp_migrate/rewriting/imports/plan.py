"""Imports: added where the file keeps them, dropped when an edit took away their last use."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import libcst as cst

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
from fsdp_migrate.rewriting.imports.import_statements import (
    Editor,
    StatementPlan,
    edit_names,
    import_text,
    new_statement,
)
from fsdp_migrate.rewriting.imports.isort_order import (
    find_neighbour,
    group_by_source,
    section_of,
    source_of,
)
from fsdp_migrate.rewriting.imports.placement import Places
from fsdp_migrate.rewriting.imports.unused import unused_after
from fsdp_migrate.rewriting.layout import Line
from fsdp_migrate.syntax.scopes import walk


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

    def rewrite(
        self,
        nodes: Sequence[ast.AST | None],
        updated: cst.SimpleStatementLine,
        editor: Editor,
    ) -> cst.CSTNode | cst.FlattenSentinel[cst.CSTNode] | cst.RemovalSentinel:
        """The import lines that replace one line of imports."""
        if len(nodes) > 1 and self._comes_apart(nodes, editor):
            return editor.splice(updated, self._apart(nodes, updated, editor))
        smalls: list[cst.BaseSmallStatement] = []
        above: list[Import] = []
        below: list[Import] = []
        indent = ""
        section = 0
        for node, small in zip(nodes, updated.body, strict=True):
            change = self.statements.get(node) if node is not None else None
            if change is None or not isinstance(small, (cst.Import, cst.ImportFrom)):
                smalls.append(small)
                continue
            assert isinstance(node, (ast.Import, ast.ImportFrom))
            indent = " " * node.col_offset
            section = section_of(source_of(node), self.local)
            edited: cst.BaseSmallStatement | None = small
            if change.dropped or change.added:
                edited = edit_names(node, small, change, editor, indent)
            if edited is not None:
                smalls.append(edited)
            above += change.preceding
            below += change.following
        placed = self._statements(above, editor, indent)
        if smalls:
            smalls[-1] = smalls[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
            kept = updated.with_changes(body=smalls, leading_lines=())
            placed.append((editor.with_markers(nodes, kept), section))
        placed += self._statements(below, editor, indent)
        if not placed:
            return editor.gone(updated.leading_lines, about_it=False)
        leading = list(updated.leading_lines)
        starts_section = not smalls and not above and placed[0][1] > section
        starts_section = starts_section and not _opens_block(nodes[0], editor.module)
        if starts_section and not any(line.comment is None for line in leading):
            leading.insert(0, cst.EmptyLine(indent=False))
        first = placed[0][0]
        lines = [first.with_changes(leading_lines=[*leading, *first.leading_lines])]
        for (_, before), (line, after) in pairwise(placed):
            blank = [cst.EmptyLine(indent=False)] if before != after else []
            lines.append(line.with_changes(leading_lines=[*blank, *line.leading_lines]))
        return lines[0] if len(lines) == 1 else cst.FlattenSentinel(lines)

    def _comes_apart(self, nodes: Sequence[ast.AST | None], editor: Editor) -> bool:
        """Whether something new stands between statements of one line that are no imports."""
        if all(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes):
            return False
        changes = [self.statements[node] for node in nodes if node in self.statements]
        new = any(change.preceding or change.following for change in changes)
        return new or any(map(editor.edits, nodes))

    def _apart(
        self, nodes: Sequence[ast.AST | None], updated: cst.SimpleStatementLine, editor: Editor
    ) -> list[Line]:
        """The statements of one line, each on its own."""
        lines: list[Line] = []
        for node, small in zip(nodes, updated.body, strict=True):
            line = cst.SimpleStatementLine(
                [small.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)]
            )
            lines += [line] if node is None else self.alone(node, line, editor)
        return lines

    def alone(self, node: ast.AST, line: cst.SimpleStatementLine, editor: Editor) -> list[Line]:
        """What stands in place of a statement that shared its line with others."""
        if node not in self.statements:
            return editor.statement(node, line)
        made = self.rewrite([node], line, editor)
        if isinstance(made, cst.RemovalSentinel):
            return []
        return list(made) if isinstance(made, cst.FlattenSentinel) else [made]  # type: ignore[list-item,arg-type]  # of lines

    def _statements(
        self, needs: Sequence[Import], editor: Editor, indent: str
    ) -> list[tuple[cst.SimpleStatementLine, int]]:
        """New import lines with their sections, sections in order."""
        made = [
            (
                new_statement(group, editor, indent),
                section_of(group[0].source, self.local),
            )
            for group in group_by_source(needs)
        ]
        return sorted(made, key=lambda item: item[1])

    def at_top(self, tree: cst.Module, editor: Editor) -> cst.Module:
        """Imports for a module that has none: after its docstring and ``__future__`` lines."""
        if not self.first:
            return tree
        new = [new_statement(group, editor, "") for group in group_by_source(self.first)]
        body = list(tree.body)
        if editor.module.source.excerpt is not None:  # the first statement begins the first cell
            return tree.with_changes(body=[*body[:1], *new, *body[1:]])
        index = 1 if body and _is_docstring(body[0]) else 0
        if index == 0 and body:
            new[0] = new[0].with_changes(leading_lines=body[0].leading_lines)
            body[0] = body[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        elif index:
            new[0] = new[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        return tree.with_changes(body=[*body[:index], *new, *body[index:]])


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


def _opens_block(node: ast.AST | None, module: Module) -> bool:
    parent = module.table.parents[node] if node is not None else None
    body = getattr(parent, "body", None)
    if not isinstance(body, list) or not body:
        return False
    documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    first = 1 if documented and not isinstance(parent, ast.Module) else 0
    return body[first : first + 1] == [node]


def _is_docstring(node: cst.CSTNode) -> bool:
    if not isinstance(node, cst.SimpleStatementLine) or not node.body:
        return False
    first = node.body[0]
    return isinstance(first, cst.Expr) and isinstance(
        first.value, (cst.SimpleString, cst.ConcatenatedString)
    )
