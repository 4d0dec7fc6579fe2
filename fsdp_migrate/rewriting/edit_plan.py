"""What the edits of a file change, node by node."""

from __future__ import annotations

import ast
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.edits import (
    AddItem,
    AddKeyword,
    Code,
    Define,
    DropBranch,
    DropElse,
    Edit,
    Import,
    Insert,
    Mark,
    MoveStatement,
    RemoveArgument,
    RemoveImport,
    RemoveItem,
    RenameKeyword,
    RenameParameter,
    ReplaceExpression,
    ReplaceStatement,
    Support,
    Unwrap,
    new_code,
)
from fsdp_migrate.syntax.trees import block_of


class EditError(Exception):
    """The edits of a file cannot be applied, by a defect of the tool. The file stays as it is."""


@dataclass
class StatementEdits:
    """What happens to one statement."""

    definitions: list[Code] = field(default_factory=list)  # of functions, above it
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
    """The edits of a file, by the ``ast`` nodes that they change."""

    expressions: dict[ast.AST, Code] = field(default_factory=dict)
    calls: dict[ast.AST, list[RemoveArgument | RenameKeyword | AddKeyword]] = field(
        default_factory=lambda: defaultdict(list)
    )
    displays: dict[ast.AST, list[RemoveItem | AddItem]] = field(
        default_factory=lambda: defaultdict(list)
    )
    statements: dict[ast.AST, StatementEdits] = field(
        default_factory=lambda: defaultdict(StatementEdits)
    )
    references: set[ast.AST] = field(default_factory=set)  # old nodes that new code mentions
    imports: list[Import] = field(default_factory=list)

    def wanted(self) -> set[ast.AST]:
        """The nodes whose LibCST counterparts are needed."""
        moved = {s for e in self.statements.values() for s in e.arrivals}
        changed = {*self.expressions, *self.calls, *self.displays, *self.statements}
        return {*changed, *self.references, *moved}

    def is_continued(self, removed: ast.stmt, module: Module) -> bool:
        """Whether new code follows a removed statement, with no empty line between."""
        block = block_of(module.table.parents[removed], removed)
        for above, below in itertools.pairwise(block[block.index(removed) :]):
            edits = self.statements.get(below)
            if edits is None or edits.departs or below.lineno != (above.end_lineno or 0) + 1:
                return False
            if edits.before or edits.replacement:
                return True
        return False


def plan_edits(module: Module, edits: Sequence[Edit]) -> EditPlan:
    """Sort edits by what they change.

    Raises:
        EditError: two edits contradict each other.
    """
    plan = EditPlan()
    marked: list[tuple[ast.stmt, Mark]] = []
    for edit in edits:
        plan.references.update(node for code in new_code(edit) for node in code.old_nodes())
        match edit:
            case ReplaceExpression():
                if edit.node in plan.expressions:
                    line = module.position(edit.node)[0]
                    raise EditError(f"two rules replace the expression at line {line}")
                plan.expressions[edit.node] = edit.code
            case ReplaceStatement():
                statement = plan.statements[edit.node]
                if statement.replacement is not None and (edit.codes or statement.replacement):
                    line = module.position(edit.node)[0]
                    raise EditError(f"two rules replace the statement at line {line}")
                statement.replacement = edit.codes
            case Insert():
                where = plan.statements[edit.node]
                (where.after if edit.after else where.before).extend(edit.codes)
            case Define():
                plan.statements[edit.node].definitions.append(edit.code)
            case Unwrap():
                plan.statements[edit.node].unwrap.update(edit.items)
                plan.statements[edit.node].before.extend(edit.before)
            case DropBranch():
                plan.statements[edit.node].dropped = True
            case DropElse():
                plan.statements[edit.node].alone = True
            case RemoveArgument() | RenameKeyword() | AddKeyword():
                plan.calls[edit.call].append(edit)
            case RenameParameter():
                plan.expressions[edit.parameter] = Code(edit.name, {})
            case RemoveItem() | AddItem():
                plan.displays[edit.node].append(edit)
            case RemoveImport():
                pass  # the import plan's business
            case MoveStatement():
                _move(edit, plan, module)
            case Mark():
                marked.append((_own_line(module, edit.node), edit))
            case Import():
                plan.imports.append(edit)
            case Support():
                raise AssertionError("support needs become imports before edits are applied")
    said: set[tuple[ast.AST | None, str]] = {(place, mark.comment) for place, mark in marked}
    for place, mark in marked:
        if (_preceding(module, place), mark.comment) not in said:
            taking = _taking(module, mark, plan, edits) if _is_gone(place, plan) else None
            plan.statements[_staying(module, taking or place, plan)].marks.append(mark)
    return plan


def _taking(module: Module, mark: Mark, plan: EditPlan, edits: Sequence[Edit]) -> ast.stmt | None:
    """The statement whose new code has what a mark is about, where its own statement goes."""
    around = {mark.node, *module.table.ancestors(mark.node)}
    for edit in edits:
        if isinstance(edit, ReplaceExpression | ReplaceStatement | Insert) and any(
            not around.isdisjoint(code.old_nodes()) for code in new_code(edit)
        ):
            where = _own_line(module, edit.node)
            return None if _is_gone(where, plan) else where
    return None


def _move(edit: MoveStatement, plan: EditPlan, module: Module) -> None:
    """Note a move: two may name one statement, and what is moved to one place keeps its order."""
    arrivals = plan.statements[edit.after].arrivals
    if plan.statements[edit.node].departs and edit.node not in arrivals:
        line = module.position(edit.node)[0]
        raise EditError(f"two rules move the statement at line {line}")
    plan.statements[edit.node].departs = True
    arrivals[:] = sorted({*arrivals, edit.node}, key=lambda s: s.lineno)


def _staying(module: Module, statement: ast.stmt, plan: EditPlan) -> ast.stmt:
    """The statement itself, or the one that a reader sees in its place if it goes: one behind it
    in its block, else one in front of it, else the one that has the block."""
    parents = [statement, *module.table.ancestors(statement)]
    gone = [s for s in parents if isinstance(s, ast.stmt) and _is_gone(s, plan)]
    if not gone or (gone == [statement] and plan.statements[statement].replacement is None):
        return statement  # a condition stays, and is the place of what is about itself
    holder = module.table.parents[gone[-1]]
    block = block_of(holder, gone[-1])
    place = block.index(gone[-1])
    beside = [*block[place + 1 :], *reversed(block[:place])]
    beside += [holder] if isinstance(holder, ast.stmt) else []
    return next((s for s in beside if not _is_gone(s, plan)), statement)


def _is_gone(statement: ast.stmt, plan: EditPlan) -> bool:
    edits = plan.statements.get(statement, StatementEdits())
    if edits.before or edits.after or edits.arrivals or edits.replacement:
        return False
    if isinstance(statement, ast.If) and not statement.orelse:
        return edits.replacement == () or all(_is_gone(each, plan) for each in statement.body)
    return edits.replacement == ()


def _preceding(module: Module, statement: ast.stmt) -> ast.AST | None:
    """The statement in front of another in its block."""
    block = block_of(module.table.parents[statement], statement)
    index = block.index(statement)
    return block[index - 1] if index else None


def _own_line(module: Module, node: ast.AST) -> ast.stmt:
    """The statement around ``node`` above which a comment line can stand."""
    statement = module.table.statement(node)
    parent = module.table.parents[statement]
    lines = module.source.lines
    while isinstance(parent, ast.stmt) and (
        parent.lineno == statement.lineno
        or lines[statement.lineno - 1].startswith("elif", statement.col_offset)
    ):
        statement, parent = parent, module.table.parents[parent]
    return statement
