"""The edits of a file, by the nodes that they change."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.edits import (
    AddKeyword,
    Code,
    DropBranch,
    DropElse,
    Edit,
    Import,
    Insert,
    Mark,
    MoveStatement,
    RemoveArgument,
    RemoveImport,
    RenameKeyword,
    ReplaceExpression,
    ReplaceStatement,
    Support,
    Unwrap,
)


class EditError(Exception):
    """The edits of a file cannot be applied. A defect of ours: the file is left as it was."""


@dataclass
class StatementEdits:
    before: list[Code] = field(default_factory=list)
    replacement: tuple[Code, ...] | None = None
    after: list[Code] = field(default_factory=list)
    arrivals: list[ast.stmt] = field(default_factory=list)  # statements moved to behind this one
    departs: bool = False
    marks: list[Mark] = field(default_factory=list)
    unwrap: set[int] = field(default_factory=set)
    dropped: bool = False  # a part of an ``if`` chain that goes
    alone: bool = False  # an ``if`` whose other parts go


@dataclass
class EditPlan:
    expressions: dict[ast.AST, Code] = field(default_factory=dict)
    calls: dict[ast.AST, list[RemoveArgument | RenameKeyword | AddKeyword]] = field(
        default_factory=lambda: defaultdict(list)
    )
    statements: dict[ast.AST, StatementEdits] = field(
        default_factory=lambda: defaultdict(StatementEdits)
    )
    references: set[ast.AST] = field(default_factory=set)  # old nodes that new code mentions
    imports: list[Import] = field(default_factory=list)

    def wanted(self) -> set[ast.AST]:
        moved = {s for e in self.statements.values() for s in e.arrivals}
        return {*self.expressions, *self.calls, *self.statements, *self.references, *moved}

    def note(self, codes: Iterable[Code]) -> None:
        for each in codes:
            nodes: list[ast.expr] = []
            each.flatten(nodes)
            self.references.update(nodes)


def plan_edits(module: Module, edits: Sequence[Edit]) -> EditPlan:
    plan = EditPlan()
    for edit in edits:
        match edit:
            case ReplaceExpression():
                if edit.node in plan.expressions:
                    line = module.position(edit.node)[0]
                    raise EditError(f"two rules replace the expression at line {line}")
                plan.expressions[edit.node] = edit.code
                plan.note([edit.code])
            case ReplaceStatement():
                statement = plan.statements[edit.node]
                if statement.replacement is not None and (edit.codes or statement.replacement):
                    line = module.position(edit.node)[0]
                    raise EditError(f"two rules replace the statement at line {line}")
                statement.replacement = edit.codes
                plan.note(edit.codes)
            case Insert():
                where = plan.statements[edit.node]
                (where.after if edit.after else where.before).extend(edit.codes)
                plan.note(edit.codes)
            case Unwrap():
                plan.statements[edit.node].unwrap.update(edit.items)
                plan.statements[edit.node].before.extend(edit.before)
                plan.note(edit.before)
            case DropBranch():
                plan.statements[edit.node].dropped = True
            case DropElse():
                plan.statements[edit.node].alone = True
            case RemoveArgument() | RenameKeyword() | AddKeyword():
                plan.calls[edit.call].append(edit)
                plan.note([edit.code] if isinstance(edit, AddKeyword) else [])
            case RemoveImport():
                pass  # the import plan's business
            case MoveStatement():
                plan.statements[edit.node].departs = True
                plan.statements[edit.after].arrivals.append(edit.node)
            case Mark():
                plan.statements[_own_line(module, edit.node)].marks.append(edit)
            case Import():
                plan.imports.append(edit)
            case Support():
                raise AssertionError("support needs become imports before edits are applied")
    return plan


def _own_line(module: Module, node: ast.AST) -> ast.stmt:
    """The statement around ``node`` above which a comment line can stand."""
    statement = module.table.statement(node)
    parent = module.table.parents[statement]
    while isinstance(parent, ast.stmt) and parent.lineno == statement.lineno:
        statement, parent = parent, module.table.parents[parent]
    return statement
