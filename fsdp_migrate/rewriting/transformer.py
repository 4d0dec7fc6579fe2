"""The one pass over a LibCST tree in which all edits are made."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import libcst as cst

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.edits import (
    AddKeyword,
    Code,
    Mark,
    RemoveArgument,
)
from fsdp_migrate.rewriting import blocks, comments, layout, sequence, template
from fsdp_migrate.rewriting.edit_plan import EditError, EditPlan, StatementEdits
from fsdp_migrate.rewriting.imports.plan import ImportPlan
from fsdp_migrate.rewriting.layout import Line
from fsdp_migrate.rewriting.locate import Located

_NO_SEMICOLON = cst.MaybeSentinel.DEFAULT


class Editor(cst.CSTTransformer):
    def __init__(
        self,
        module: Module,
        tree: cst.Module,
        plan: EditPlan,
        located: Located,
        import_plan: ImportPlan,
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

    gone = staticmethod(comments.gone)

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
            block = comments.comments_kept(updated_node)
            return self.import_plan.at_top(self.opened(original_node, block), self)
        elif isinstance(original_node, cst.IndentedBlock):
            assert isinstance(updated_node, cst.IndentedBlock)
            return self.opened(original_node, comments.comments_kept(updated_node))
        return updated_node

    def opened(self, original: comments.Block, block: comments.Block) -> comments.Block:
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
            args = sequence.with_keyword(args, name, value, opening)
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
        self, node: ast.AST, line: cst.SimpleStatementLine, edits: StatementEdits
    ) -> cst.CSTNode | cst.RemovalSentinel:
        """Put a moving statement aside, with the comments right above it."""
        leading = list(line.leading_lines)
        attached: list[cst.EmptyLine] = []
        while leading and leading[-1].comment is not None:
            attached.insert(0, leading.pop())
        bare = line.with_changes(leading_lines=attached)
        self.updated[node] = self.marked(bare, edits.marks)
        return comments.gone(leading, about_it=False)

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
        lines = blocks.joined([s for each in edits.before for s in self.render(each, node)])
        if edits.replacement is not None:
            new = [s for each in edits.replacement for s in self.render(each, node)]
            if new:
                new[0] = comments.above(new[0], self.comments(node))
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
            lines = lines or [cst.SimpleStatementLine([cst.Expr(cst.Name(comments.GONE))])]
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
            if any(comments.spans(n, line, column) for n in inside):
                continue  # travels with the node it stands in
            owner = comments.owner(owners, line, column)
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
            return comments.gone(old.leading_lines)
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
                return comments.gone(tuple(updated.leading_lines))
            if isinstance(following, cst.Else):
                kept = blocks.dedented(following.body)
                if not kept:
                    return comments.gone(tuple(updated.leading_lines))
                above = [
                    *updated.leading_lines,
                    *comments.of_branch(following),
                    *kept[0].leading_lines,
                ]
                kept[0] = kept[0].with_changes(leading_lines=above)
                return kept[0] if len(kept) == 1 else cst.FlattenSentinel(kept)
            assert isinstance(following, cst.If)
            above = [*updated.leading_lines, *comments.of_branch(following)]
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
            return comments.gone(leading)
        first = lines[0]
        behind = getattr(first, "leading_lines", ())
        lines[0] = first.with_changes(leading_lines=[*leading, *behind])
        return lines[0] if len(lines) == 1 else cst.FlattenSentinel(lines)

    def unwrapped(self, node: cst.With, edits: StatementEdits) -> list[Line]:
        """A ``with`` without some of its items; its dedented body when none is left."""
        kept = [item for index, item in enumerate(node.items) if index not in edits.unwrap]
        if kept:
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            plain = not isinstance(node.lpar, cst.LeftParen)
            changes = {} if plain else {"lpar": node.lpar, "rpar": node.rpar}
            return [node.with_changes(items=kept, **changes)]
        return blocks.dedented(node.body)


def _is_nothing(result: object) -> bool:
    """Whether a statement left nothing but comments."""
    return isinstance(result, cst.RemovalSentinel) or (
        isinstance(result, cst.CSTNode) and comments.is_gone(result)
    )


def _is_operand(module: Module, node: ast.AST) -> bool:
    """Whether ``node`` stands where a looser expression would need parentheses."""
    parent = module.table.parents.get(node)
    return isinstance(
        parent, (ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.Attribute, ast.Await)
    ) or (isinstance(parent, ast.Call) and parent.func is node)
