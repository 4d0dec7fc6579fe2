"""The lines of a file that import, as an :class:`ImportPlan` changes them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import libcst as cst

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.edits import Import, Mark
from fsdp_migrate.rewriting import comments
from fsdp_migrate.rewriting.imports.import_statements import edit_names, new_statement
from fsdp_migrate.rewriting.imports.isort_order import section_of, source_of
from fsdp_migrate.rewriting.imports.plan import ImportPlan
from fsdp_migrate.rewriting.layout import Line

BLANK = cst.EmptyLine(indent=False)


@dataclass
class ImportLines:
    """Rewrites a file's lines of imports, and adds the first ones to a file without any."""

    plan: ImportPlan
    module: Module
    tree: cst.Module
    line_length: int

    def rewrite(
        self,
        nodes: Sequence[ast.AST | None],
        updated: cst.SimpleStatementLine,
        marks: Sequence[Mark],
    ) -> list[Line]:
        """The lines that replace one line of imports; none where all of it goes.

        ``nodes`` are the statements of the line, ``marks`` the markers for what stays of it.
        """
        smalls: list[cst.BaseSmallStatement] = []
        above: list[Import] = []
        below: list[Import] = []
        indent = ""
        section = 0
        for node, small in zip(nodes, updated.body, strict=True):
            change = self.plan.statements.get(node) if node is not None else None
            if change is None or not isinstance(small, (cst.Import, cst.ImportFrom)):
                smalls.append(small)
                continue
            assert isinstance(node, (ast.Import, ast.ImportFrom))
            indent = " " * node.col_offset
            section = section_of(source_of(node), self.plan.local)
            edited: cst.BaseSmallStatement | None = small
            if change.dropped or change.added:
                width = self.line_length - len(indent)
                edited = edit_names(node, small, change.dropped, change.added, self.tree, width)
            if edited is not None:
                smalls.append(edited)
            above += change.preceding
            below += change.following
        placed = self._new_lines(above, indent)
        if smalls:
            smalls[-1] = smalls[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
            kept = updated.with_changes(body=smalls, leading_lines=())
            width = self.line_length - len(indent)
            placed.append((comments.add_markers(kept, marks, width=width), section))
        placed += self._new_lines(below, indent)
        if not placed:
            return []
        leading = list(updated.leading_lines)
        starts_section = not smalls and not above and placed[0][1] > section
        starts_section = starts_section and not _opens_block(nodes[0], self.module)
        if starts_section and not any(line.comment is None for line in leading):
            leading.insert(0, BLANK)
        lines = [comments.put_above(leading, placed[0][0])]
        for (_, before), (line, after) in pairwise(placed):
            lines.append(comments.put_above([BLANK] if before != after else [], line))
        return lines

    def _new_lines(self, needs: Sequence[Import], indent: str) -> list[tuple[Line, int]]:
        """New import lines with their sections, sections in order."""
        made: list[tuple[Line, int]] = [
            (self._new_line(group, indent), section_of(group[0].source, self.plan.local))
            for group in self.plan.grouped(needs)
        ]
        return sorted(made, key=lambda item: item[1])

    def _new_line(self, group: Sequence[Import], indent: str = "") -> cst.SimpleStatementLine:
        return new_statement(group, self.tree, self.line_length - len(indent))

    def add_at_top(self, tree: cst.Module) -> cst.Module:
        """Imports for a module that has none: after its docstring and ``__future__`` lines."""
        if not self.plan.first:
            return tree
        new = [self._new_line(group) for group in self.plan.grouped(self.plan.first)]
        body = list(tree.body)
        if self.module.source.excerpt is not None:  # the first statement begins the first cell
            return tree.with_changes(body=[*body[:1], *new, *body[1:]])
        index = 1 if body and _is_docstring(body[0]) else 0
        if index == 0 and body:
            new[0] = new[0].with_changes(leading_lines=body[0].leading_lines)
            body[0] = body[0].with_changes(leading_lines=[BLANK])
        elif index:
            new[0] = new[0].with_changes(leading_lines=[BLANK])
        return tree.with_changes(body=[*body[:index], *new, *body[index:]])


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
