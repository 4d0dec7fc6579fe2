"""Apply a module's edits in one pass over the parts of its LibCST tree that change."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import libcst as cst

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
from fsdp_migrate.rewriting import imports, layout, sequence, template
from fsdp_migrate.rewriting.excerpt import Excerpt, excerpt
from fsdp_migrate.rewriting.imports import Line
from fsdp_migrate.rewriting.locate import Located, locate


class EditError(Exception):
    """The edits of a file cannot be applied. A defect of ours: the file is left as it was."""


@dataclass
class _StatementEdits:
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
class _Plan:
    expressions: dict[ast.AST, Code] = field(default_factory=dict)
    calls: dict[ast.AST, list[RemoveArgument | RenameKeyword | AddKeyword]] = field(
        default_factory=lambda: defaultdict(list)
    )
    statements: dict[ast.AST, _StatementEdits] = field(
        default_factory=lambda: defaultdict(_StatementEdits)
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


def apply_edits(
    module: Module,
    edits: Sequence[Edit],
    *,
    line_length: int = 100,
    local: frozenset[str] = frozenset(),
    asked_for: frozenset[str] = frozenset(),
) -> bytes:
    """The new bytes of ``module``: layout, line endings, encoding and byte order mark kept.

    Raises:
        EditError: LibCST cannot parse or does not reproduce the file, two edits contradict each
            other, or the result cannot be written in the file's encoding.
    """
    source = module.source
    plan = _plan(module, edits)
    import_plan = imports.plan(module, edits, plan.imports, local, asked_for)
    for statement in import_plan.above:
        plan.statements[statement].before[:0] = import_plan.code(statement)
    wanted = {*plan.wanted(), *import_plan.statements}
    part = None if import_plan.first else excerpt(module, wanted, edits)
    edited = _edited(module, plan, import_plan, line_length, part)
    text = edited if part is None else part.whole(edited)
    if text is None:
        text = _edited(module, plan, import_plan, line_length, None)
    bom = b"\xef\xbb\xbf" if source.data.startswith(b"\xef\xbb\xbf") else b""
    encoding = "utf-8" if bom else source.encoding
    try:
        return bom + text.removeprefix("\ufeff").encode(encoding)
    except UnicodeEncodeError as error:
        raise EditError(f"the result cannot be written as {encoding}") from error


def _edited(
    module: Module,
    plan: _Plan,
    import_plan: imports.ImportPlan,
    line_length: int,
    part: Excerpt | None,
) -> str:
    """The new text of a module, or of a part of it in which all that is edited stands."""
    source = module.source
    try:
        tree = cst.parse_module(source.data if part is None else part.text)
    except (cst.ParserSyntaxError, UnicodeDecodeError, RecursionError) as error:
        raise EditError(f"LibCST cannot parse it: {error}") from error
    located = locate(tree, source, {*plan.wanted(), *import_plan.statements}, part)
    if located.text != (source.text if part is None else part.text):
        raise EditError("LibCST does not reproduce the file byte for byte")
    missing = plan.wanted() - set(located.nodes.values())
    if missing:
        lines = sorted(getattr(node, "lineno", 0) for node in missing)
        raise EditError(f"no LibCST node for the code at line {lines[0]}")
    editor = _Editor(module, tree, plan, located, import_plan, line_length)
    try:
        return tree.visit(editor).code
    except (cst.ParserSyntaxError, cst.CSTValidationError) as error:
        raise EditError(f"the new code does not fit in: {error}") from error


def _plan(module: Module, edits: Sequence[Edit]) -> _Plan:
    plan = _Plan()
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


_NO_SEMICOLON = cst.MaybeSentinel.DEFAULT
_GONE = "__fsdp_migrate_gone__"
Block = TypeVar("Block", cst.Module, cst.IndentedBlock)


def gone(
    leading: Sequence[cst.EmptyLine], *, about_it: bool = True
) -> cst.SimpleStatementLine | cst.RemovalSentinel:
    """What a removed statement leaves behind: comments above it, for the next statement.

    With ``about_it``, a comment right above the statement was about it and goes with it.
    """
    kept = list(leading)
    while about_it and kept and kept[-1].comment is not None:
        kept.pop()
    if not any(line.comment is not None for line in kept):
        return cst.RemoveFromParent()
    return cst.SimpleStatementLine([cst.Expr(cst.Name(_GONE))], leading_lines=kept)


def _comments_kept(block: Block) -> Block:
    """Hand the comments of removed statements to the statements that follow them."""
    body: list[cst.BaseStatement] = []
    waiting: list[cst.EmptyLine] = []
    for statement in block.body:
        if _is_gone(statement):
            waiting += getattr(statement, "leading_lines", ())
        elif waiting:
            above: Sequence[cst.EmptyLine] = getattr(statement, "leading_lines", ())
            body.append(statement.with_changes(leading_lines=[*waiting, *above]))
            waiting = []
        else:
            body.append(statement)
    if len(body) == len(block.body) and not waiting:
        return block
    return block.with_changes(body=body, footer=[*waiting, *block.footer])


def _is_nothing(result: object) -> bool:
    """Whether a statement left nothing but comments."""
    return isinstance(result, cst.RemovalSentinel) or (
        isinstance(result, cst.CSTNode) and _is_gone(result)
    )


def _is_gone(statement: cst.CSTNode) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine) or not statement.body:
        return False
    small = statement.body[0]
    named = isinstance(small, cst.Expr) and isinstance(small.value, cst.Name)
    return (
        named and cst.ensure_type(cst.ensure_type(small, cst.Expr).value, cst.Name).value == _GONE
    )


class _Editor(cst.CSTTransformer):
    def __init__(
        self,
        module: Module,
        tree: cst.Module,
        plan: _Plan,
        located: Located,
        import_plan: imports.ImportPlan,
        line_length: int,
    ) -> None:
        super().__init__()
        self.module = module
        self.tree = tree
        self.plan = plan
        self.nodes = located.nodes
        self.dirty = located.dirty
        self.indents = located.indents
        self.import_plan = import_plan
        self.line_length = line_length
        self.updated: dict[ast.AST, cst.CSTNode] = {}
        self.new: set[cst.CSTNode] = set()  # expressions that edits made
        self.removed: set[cst.CSTNode] = set()  # statements that are gone

    gone = staticmethod(gone)

    def edits(self, node: ast.AST | None) -> bool:
        return node in self.plan.statements

    # -- dispatch -------------------------------------------------------------------------------

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node in self.dirty

    def on_leave(  # type: ignore[override]  # LibCST's type variable cannot say this
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode | cst.FlattenSentinel[cst.CSTNode] | cst.RemovalSentinel:
        if original_node not in self.dirty:
            return updated_node
        node = self.nodes.get(original_node)
        if node is not None and isinstance(updated_node, cst.BaseExpression):
            updated_node = self.expression(node, updated_node)
            self.updated[node] = updated_node
        elif isinstance(original_node, cst.BaseSmallStatement) and node is not None:
            self.updated[node] = updated_node
        elif isinstance(original_node, cst.SimpleStatementLine):
            result = self.simple_line(original_node, updated_node)
            if _is_nothing(result):
                self.removed.add(original_node)
            return result
        elif isinstance(original_node, cst.SimpleStatementSuite):
            return self.suite(original_node, updated_node)
        elif isinstance(original_node, cst.BaseCompoundStatement) and node is not None:
            return self.compound(node, updated_node)
        elif isinstance(original_node, cst.Module):
            assert isinstance(updated_node, cst.Module)
            block = _comments_kept(updated_node)
            return self.import_plan.at_top(self.opened(original_node, block), self)
        elif isinstance(original_node, cst.IndentedBlock):
            assert isinstance(updated_node, cst.IndentedBlock)
            return self.opened(original_node, _comments_kept(updated_node))
        return updated_node

    def opened(self, original: Block, block: Block) -> Block:
        """A block whose first statement was removed does not begin with an empty line."""
        first = original.body[0] if original.body else None
        if first not in self.removed or not block.body:
            return block
        leading = list(getattr(block.body[0], "leading_lines", ()))
        while leading and leading[0].comment is None:
            leading.pop(0)
        opening = block.body[0].with_changes(leading_lines=leading)
        return block.with_changes(body=[opening, *block.body[1:]])

    def lookup(self, node: ast.expr) -> cst.BaseExpression:
        found = self.updated.get(node)
        if not isinstance(found, cst.BaseExpression):
            raise EditError(f"the code at line {node.lineno} is used before it is reached")
        return found.visit(layout.Dedent(self.shift(node)))  # type: ignore[return-value]

    def shift(self, node: ast.expr) -> int:
        """How much deeper than its statement the line stands on which ``node`` begins."""
        statement = self.module.table.statement(node)
        if node.lineno in {statement.lineno, node.end_lineno}:
            return 0
        text = self.module.source.lines[node.lineno - 1]
        return max(0, len(text) - len(text.lstrip()) - statement.col_offset)

    # -- expressions ----------------------------------------------------------------------------

    def expression(self, node: ast.AST, updated: cst.BaseExpression) -> cst.BaseExpression:
        if node in self.plan.calls:
            assert isinstance(node, ast.Call)
            assert isinstance(updated, cst.Call)
            updated = self.call(node, updated)
            self.updated[node] = updated
            self.new.add(updated)
        new = self.plan.expressions.get(node)
        if new is None:
            return updated
        self.updated[node] = updated
        result = template.expression(new, self.lookup, self.tree)
        if getattr(updated, "lpar", ()) and not getattr(result, "lpar", ()):
            result = result.with_changes(lpar=updated.lpar, rpar=updated.rpar)
        elif not isinstance(node, ast.Call) or not isinstance(result, cst.Call):
            result = template.parenthesized(result) if _is_operand(self.module, node) else result
        self.new.add(result)
        return result

    def call(self, node: ast.Call, updated: cst.Call) -> cst.Call:
        written: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
        written.sort(key=lambda a: (a.lineno, a.col_offset))
        args = list(updated.args)
        gone: set[int] = set()
        added: list[tuple[str, cst.BaseExpression]] = []
        for edit in self.plan.calls[node]:
            if isinstance(edit, RemoveArgument):
                gone.add(written.index(edit.argument))
            elif isinstance(edit, AddKeyword):
                value = template.expression(edit.code, self.lookup, self.tree)
                added.append((edit.name, value))
            else:
                index = written.index(edit.keyword)
                args[index] = args[index].with_changes(keyword=cst.Name(edit.name))
        opening = updated.whitespace_before_args
        if gone:
            args, opening = sequence.without(args, gone, opening)
        for name, value in added:
            args = _with_keyword(args, name, value, opening)
        return updated.with_changes(args=args, whitespace_before_args=opening)

    # -- statements -----------------------------------------------------------------------------

    def simple_line(
        self, original: cst.SimpleStatementLine, updated: cst.CSTNode
    ) -> cst.CSTNode | cst.FlattenSentinel[cst.CSTNode] | cst.RemovalSentinel:
        assert isinstance(updated, cst.SimpleStatementLine)
        nodes = [self.nodes.get(small) for small in original.body]
        touched = [n for n in nodes if n in self.plan.statements]
        changed_import = any(n in self.import_plan.statements for n in nodes if n is not None)
        if changed_import:
            return self.import_plan.rewrite(nodes, updated, self)
        if self.new:
            updated = self.fitted(original, updated)
        if len(nodes) == 1 and nodes[0] is not None:
            departing = self.plan.statements.get(nodes[0])
            if departing is not None and departing.departs:
                return self.depart(nodes[0], updated, departing)
        if not touched:
            return updated
        lines: list[Line] = []
        for node, small in zip(nodes, updated.body, strict=True):
            line = cst.SimpleStatementLine([small.with_changes(semicolon=_NO_SEMICOLON)])
            above = self.above(node, updated) if node is not None else ()
            lines += [line] if node is None else self.statement(node, line, above)
        return self.splice(updated, lines)

    def depart(
        self, node: ast.AST, line: cst.SimpleStatementLine, edits: _StatementEdits
    ) -> cst.CSTNode | cst.RemovalSentinel:
        """Put a moving statement aside, with the comments right above it."""
        leading = list(line.leading_lines)
        attached: list[cst.EmptyLine] = []
        while leading and leading[-1].comment is not None:
            attached.insert(0, leading.pop())
        bare = line.with_changes(leading_lines=attached)
        self.updated[node] = self.marked(bare, edits.marks)
        return gone(leading, about_it=False)

    def fitted(
        self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        """A line with new expressions in it, broken at those if they made it too long."""
        indent = self.indents.get(original, "")
        new, self.new = self.new, set()
        return layout.fit_line(updated, self.tree, indent, self.line_length, new)

    def statement(
        self, node: ast.AST, line: Line, above: Sequence[cst.EmptyLine] = ()
    ) -> list[Line]:
        """What stands in place of one statement; ``above`` are the comments over it."""
        edits = self.plan.statements.get(node)
        if edits is None:
            return [line]
        self.updated[node] = line
        lines = _joined([s for each in edits.before for s in self.render(each, node)])
        if edits.replacement is not None:
            new = [s for each in edits.replacement for s in self.render(each, node)]
            if new:
                new[0] = _above(new[0], self.comments(node))
            lines += new
        elif not edits.departs:
            lines.append(line)
        for moved in edits.arrivals:
            arrived = self.updated.get(moved)
            if isinstance(arrived, cst.BaseSmallStatement):
                arrived = cst.SimpleStatementLine([arrived])
            if not isinstance(arrived, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
                line_number = getattr(moved, "lineno", 0)
                raise EditError(f"the statement at line {line_number} would move backwards")
            lines.append(arrived)
        following = [s for each in edits.after for s in self.render(each, node)]
        if following and isinstance(node, ast.ClassDef):  # PEP 8's empty lines
            following[0] = following[0].with_changes(
                leading_lines=[cst.EmptyLine(indent=False)] * 2
            )
        lines += following
        if edits.marks:
            lines = lines or [cst.SimpleStatementLine([cst.Expr(cst.Name(_GONE))])]
            lines[0] = self.marked(lines[0], edits.marks, above)
        return lines

    def render(self, new: Code, node: ast.AST) -> list[Line]:
        line = self.module.source.lines[getattr(node, "lineno", 1) - 1]
        indent = line[: len(line) - len(line.lstrip())]
        lines = [
            layout.fit(s, self.tree, indent, self.line_length)
            for s in template.statements(new, self.lookup, self.tree)
        ]
        blank = cst.EmptyLine(indent=False)
        if isinstance(lines[0], cst.FunctionDef) and not self.is_first(node):
            lines[0] = lines[0].with_changes(leading_lines=[blank])
        last = lines[-1]
        if isinstance(last, cst.FunctionDef) and not self.is_last(node):
            assert isinstance(last.body, cst.IndentedBlock)
            lines[-1] = last.with_changes(body=last.body.with_changes(footer=[blank]))
        return lines

    def is_last(self, node: ast.AST) -> bool:
        """Whether a statement closes its block, or already has an empty line below it."""
        end = getattr(node, "end_lineno", 1)
        lines = self.module.source.lines
        if end >= len(lines) or not lines[end].strip():
            return True
        return len(lines[end]) - len(lines[end].lstrip()) < getattr(node, "col_offset", 0)

    def is_first(self, node: ast.AST) -> bool:
        """Whether a statement opens its block, or already has an empty line above it."""
        parent = self.module.table.parents[node]
        opens = getattr(parent, "body", [None])[0] is node
        line = getattr(node, "lineno", 1)
        return opens or not self.module.source.lines[line - 2].strip()

    def comments(self, node: ast.AST) -> list[str]:
        """Comments of a replaced statement that belong to arguments whose values live on."""
        source = self.module.source
        start, end = getattr(node, "lineno", 1), getattr(node, "end_lineno", 1)
        if start == end:
            return []
        owners = [n for n in ast.walk(node) if isinstance(n, (ast.keyword, ast.expr))]
        inside = [n for n in self.plan.references if start <= getattr(n, "lineno", 0) <= end]
        found = []
        for line, column, text in source.comments(start, end):
            if any(_spans(n, line, column) for n in inside):
                continue  # travels with the node it stands in
            owner = _owner(owners, line, column)
            kept = owner is not None and any(n in self.plan.references for n in ast.walk(owner))
            if kept:
                found.append(text)
        return found

    def marked(self, line: Line, marks: list[Mark], existing: Sequence[cst.EmptyLine] = ()) -> Line:
        """``line`` with its markers above it; one of the same rule that is there already counts."""
        leading = list(getattr(line, "leading_lines", ()))
        present = {
            e.comment.value.partition(":")[0]
            for e in (*leading, *existing)
            if e.comment is not None
        }
        new = dict.fromkeys(m.comment for m in marks if m.comment.partition(":")[0] not in present)
        leading += [cst.EmptyLine(comment=cst.Comment(comment)) for comment in new]
        return line.with_changes(leading_lines=leading)

    def with_markers(
        self, nodes: Sequence[ast.AST | None], line: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        plans = [self.plan.statements[n] for n in nodes if n in self.plan.statements]
        marked = self.marked(line, [mark for plan in plans for mark in plan.marks])
        assert isinstance(marked, cst.SimpleStatementLine)
        return marked

    def above(self, node: ast.AST, line: cst.CSTNode) -> Sequence[cst.EmptyLine]:
        """The comments above a statement; those over a module's first are in its header."""
        leading: Sequence[cst.EmptyLine] = getattr(line, "leading_lines", ())
        body = self.module.source.tree.body
        first = bool(body) and body[0] is node
        header = [e for e in self.tree.header if isinstance(e, cst.EmptyLine)]
        return (*header, *leading) if first else leading

    def splice(
        self, old: cst.SimpleStatementLine, lines: list[Line]
    ) -> cst.CSTNode | cst.FlattenSentinel[cst.CSTNode] | cst.RemovalSentinel:
        """Hand the comments around an old line to the lines that replace it."""
        if not lines:
            return gone(old.leading_lines)
        present = {e.comment.value for e in old.leading_lines if e.comment is not None}
        fresh = [
            e for e in lines[0].leading_lines if e.comment is None or e.comment.value not in present
        ]
        lines[0] = lines[0].with_changes(leading_lines=[*old.leading_lines, *fresh])
        last = lines[-1]
        if isinstance(last, cst.SimpleStatementLine):
            lines[-1] = last.with_changes(trailing_whitespace=old.trailing_whitespace)
        return cst.FlattenSentinel(lines)

    def suite(
        self, original: cst.SimpleStatementSuite, updated: cst.CSTNode
    ) -> cst.SimpleStatementSuite | cst.IndentedBlock:
        """``if x: y = FSDP(y)``: becomes an indented block when more than one line comes of it."""
        assert isinstance(updated, cst.SimpleStatementSuite)
        nodes = [self.nodes.get(small) for small in original.body]
        concerned = self.plan.statements.keys() | self.import_plan.statements.keys()
        if concerned.isdisjoint(nodes):
            return updated
        lines: list[Line] = []
        whole = True  # each statement is still one
        for node, small in zip(nodes, updated.body, strict=True):
            line = cst.SimpleStatementLine([small.with_changes(semicolon=_NO_SEMICOLON)])
            made = [line] if node is None else self.import_plan.alone(node, line, self)
            whole &= len(made) == 1 and made[0].leading_lines == line.leading_lines
            lines += made
        if whole and self.plan.statements.keys().isdisjoint(nodes):
            body = [
                new.body[0].with_changes(semicolon=old.semicolon)
                for new, old in zip(lines, updated.body, strict=True)
                if isinstance(new, cst.SimpleStatementLine)
            ]
            return updated.with_changes(body=body)
        return cst.IndentedBlock(body=lines, header=updated.trailing_whitespace)

    def compound(
        self, node: ast.AST, updated: cst.CSTNode
    ) -> cst.CSTNode | cst.FlattenSentinel[cst.CSTNode] | cst.RemovalSentinel:
        edits = self.plan.statements.get(node)
        if edits is None:
            return updated
        assert isinstance(updated, cst.BaseCompoundStatement)
        if edits.alone:
            assert isinstance(updated, cst.If)
            updated = updated.with_changes(orelse=None)
        if edits.dropped:
            assert isinstance(updated, cst.If)
            following = updated.orelse
            table = self.module.table
            if getattr(table.parents[node], "orelse", None) == [node]:  # an ``elif``
                return cst.RemoveFromParent() if following is None else following
            if following is None:  # all of the chain goes
                return gone(tuple(updated.leading_lines))
            if isinstance(following, cst.Else):
                kept = _dedented(following.body)
                if not kept:
                    return gone(tuple(updated.leading_lines))
                above = [*updated.leading_lines, *_comments(following), *kept[0].leading_lines]
                kept[0] = kept[0].with_changes(leading_lines=above)
                return kept[0] if len(kept) == 1 else cst.FlattenSentinel(kept)
            assert isinstance(following, cst.If)
            above = [*updated.leading_lines, *_comments(following)]
            updated = following.with_changes(leading_lines=above)
        leading = tuple(updated.leading_lines)
        bare = updated.with_changes(leading_lines=())
        lines: list[Line]
        if edits.unwrap:
            assert isinstance(bare, cst.With)
            lines = self.unwrapped(bare, edits)
            lines = [s for e in edits.before for s in self.render(e, node)] + lines
            if edits.marks and lines:
                lines[0] = self.marked(lines[0], edits.marks, self.above(node, updated))
        else:
            lines = self.statement(node, bare, self.above(node, updated))
        if not lines:
            return gone(leading)
        first = lines[0]
        behind = getattr(first, "leading_lines", ())
        lines[0] = first.with_changes(leading_lines=[*leading, *behind])
        return lines[0] if len(lines) == 1 else cst.FlattenSentinel(lines)

    def unwrapped(self, node: cst.With, edits: _StatementEdits) -> list[Line]:
        """A ``with`` without some of its items; its dedented body when none is left."""
        kept = [item for index, item in enumerate(node.items) if index not in edits.unwrap]
        if kept:
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            plain = not isinstance(node.lpar, cst.LeftParen)
            changes = {} if plain else {"lpar": node.lpar, "rpar": node.rpar}
            return [node.with_changes(items=kept, **changes)]
        return _dedented(node.body)


def _comments(part: cst.If | cst.Else) -> list[cst.EmptyLine]:
    """The comments above an ``elif`` or an ``else``."""
    return [line for line in part.leading_lines if line.comment is not None]


def _dedented(body: cst.BaseSuite) -> list[Line]:
    """The statements of a body, to stand in the place of what it was the body of."""
    if isinstance(body, cst.SimpleStatementSuite):
        return [cst.SimpleStatementLine([s]) for s in body.body]
    assert isinstance(body, cst.IndentedBlock)
    lines = list(body.body)
    comments = [
        cst.EmptyLine(comment=h.comment)
        for h in [body.header]
        if isinstance(h, cst.TrailingWhitespace) and h.comment is not None
    ]
    if lines:
        above = list(getattr(lines[0], "leading_lines", ()))
        while above and above[0].comment is None:
            above.pop(0)  # the blank line under the with
        lines[0] = lines[0].with_changes(leading_lines=[*comments, *above])
    if any(line.comment is not None for line in body.footer):
        lines.append(
            cst.SimpleStatementLine([cst.Expr(cst.Name(_GONE))], leading_lines=body.footer)
        )
    return lines  # type: ignore[return-value]  # an IndentedBlock holds statements only


def _joined(lines: list[Line]) -> list[Line]:
    """New lines, those under one condition put together."""
    found: list[Line] = []
    for line in lines:
        last = found[-1] if found else None
        if isinstance(last, cst.If) and isinstance(line, cst.If) and _same_condition(last, line):
            lines = [*last.body.body, *line.body.body]
            found[-1] = last.with_changes(body=last.body.with_changes(body=lines))
        else:
            found.append(line)
    return found


def _same_condition(first: cst.If, second: cst.If) -> bool:
    alone = first.orelse is None and second.orelse is None
    return alone and first.test.deep_equals(second.test)


def _with_keyword(
    args: list[cst.Arg],
    name: str,
    value: cst.BaseExpression,
    opening: cst.BaseParenthesizableWhitespace,
) -> list[cst.Arg]:
    """``args`` with one more keyword, laid out like the last one; ``opening`` is before them."""
    new = cst.Arg(
        value=value,
        keyword=cst.Name(name),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    if not args:
        return [new]
    last = args[-1]
    if not isinstance(last.comma, cst.Comma):
        comma = cst.Comma(whitespace_after=_SPACE)
        closing = last.whitespace_after_arg
        last = last.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace(""))
        return [*args[:-1], last, new.with_changes(whitespace_after_arg=closing)]
    closing = last.comma.whitespace_after
    between: cst.BaseParenthesizableWhitespace = closing
    if len(args) > 1 and isinstance(args[-2].comma, cst.Comma):
        between = sequence.plain(args[-2].comma.whitespace_after)
    elif isinstance(opening, cst.ParenthesizedWhitespace):
        between = sequence.plain(opening)
    if isinstance(closing, cst.ParenthesizedWhitespace) and isinstance(
        between, cst.ParenthesizedWhitespace
    ):
        between = between.with_changes(first_line=closing.first_line)  # a comment stays behind
    comma = last.comma.with_changes(whitespace_after=sequence.plain(closing))
    return [
        *args[:-1],
        last.with_changes(comma=cst.Comma(whitespace_after=between)),
        new.with_changes(comma=comma),
    ]


_SPACE = cst.SimpleWhitespace(" ")


def _above(line: Line, comments: Sequence[str]) -> Line:
    """``line`` with own-line comments above it."""
    if not comments:
        return line
    leading = [cst.EmptyLine(comment=cst.Comment(text)) for text in comments]
    return line.with_changes(leading_lines=[*leading, *getattr(line, "leading_lines", ())])


def _spans(node: ast.AST, line: int, column: int) -> bool:
    """Whether a position lies within a node."""
    assert isinstance(node, ast.expr)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start = (node.lineno, node.col_offset)
    return start <= (line, column) < (node.end_lineno, node.end_col_offset)


def _owner(nodes: Sequence[ast.AST], line: int, column: int) -> ast.AST | None:
    """What a comment is about: what ends before it on its line, else what follows it."""
    before = [
        n
        for n in nodes
        if getattr(n, "end_lineno", 0) == line and getattr(n, "end_col_offset", 0) <= column
    ]
    if before:
        return min(before, key=lambda n: getattr(n, "col_offset", 0))
    after = [n for n in nodes if getattr(n, "lineno", 0) > line]
    return min(after, key=lambda n: (n.lineno, n.col_offset), default=None)  # type: ignore[attr-defined]


def _is_operand(module: Module, node: ast.AST) -> bool:
    """Whether ``node`` stands where a looser expression would need parentheses."""
    parent = module.table.parents.get(node)
    return isinstance(
        parent, (ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.Attribute, ast.Await)
    ) or (isinstance(parent, ast.Call) and parent.func is node)
