"""The one pass over a LibCST tree in which all edits are made."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from fsdp_migrate.planning.edits import Code, Mark
from fsdp_migrate.rewriting import (
    blocks,
    comments,
    headers,
    layout,
    quotes,
    template,
)
from fsdp_migrate.rewriting.comments import Block
from fsdp_migrate.rewriting.edit_plan import EditError, StatementEdits
from fsdp_migrate.rewriting.expression_editor import ExpressionEditor
from fsdp_migrate.rewriting.layout import Line
from fsdp_migrate.syntax.kinds import of_kind

Replacement = cst.CSTNode | cst.FlattenSentinel[cst.CSTNode] | cst.RemovalSentinel

APART = [cst.EmptyLine(indent=False)] * 2  # PEP 8's empty lines around a definition


class Editor(ExpressionEditor):
    """Leaves the nodes of a tree bottom-up, and replaces each by what its edits make of it."""

    # -- dispatch -------------------------------------------------------------------------------

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.If) and node.orelse is not None:
            self.following.add(node.orelse)
        return node in self.dirty

    def on_leave(  # type: ignore[override]  # LibCST's type variable cannot say this
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> Replacement:
        if original_node not in self.dirty:
            return updated_node
        node = self.nodes.get(original_node)
        if node is not None and isinstance(updated_node, cst.BaseExpression):
            updated_node = self.expression(node, updated_node)
            self.updated[node] = updated_node
        elif isinstance(original_node, cst.FormattedString):
            assert isinstance(updated_node, cst.FormattedString)
            return quotes.told_apart(original_node, updated_node)
        elif isinstance(original_node, cst.BaseSmallStatement) and node is not None:
            self.updated[node] = updated_node
        elif isinstance(updated_node, cst.Arg):
            return template.without_lambda(updated_node, self.written)
        elif isinstance(original_node, cst.SimpleStatementLine):
            return _in_place(self.simple_line(original_node, updated_node))
        elif isinstance(original_node, cst.SimpleStatementSuite):
            return self.suite(original_node, updated_node)
        elif isinstance(original_node, cst.BaseCompoundStatement):
            if isinstance(updated_node, headers.Headed):
                updated_node = self.headed(original_node, updated_node)
            if node is not None:
                return self.compound(node, updated_node)
        elif isinstance(original_node, cst.Module):
            assert isinstance(updated_node, cst.Module)
            return self.import_lines.add_at_top(self.finish_block(original_node, updated_node))
        elif isinstance(original_node, cst.IndentedBlock):
            assert isinstance(updated_node, cst.IndentedBlock)
            finished = self.finish_block(original_node, updated_node)
            return blocks.indented_alike(original_node, finished)
        return updated_node

    def finish_block(self, original: Block, updated: Block) -> Block:
        """A block without its placeholders. If its first statement was removed, it does not begin
        with an empty line."""
        block: Block = comments.hand_down(updated)
        first = original.body[0] if original.body else None
        if first not in self.removed or not block.body:
            return block
        leading = comments.from_first_comment(comments.leading_lines(block.body[0]))
        opening = block.body[0].with_changes(leading_lines=leading)
        return block.with_changes(body=[opening, *block.body[1:]])

    # -- statements -----------------------------------------------------------------------------

    def simple_line(self, original: cst.SimpleStatementLine, updated: cst.CSTNode) -> list[Line]:
        """What stands in place of a line with one or more statements."""
        assert isinstance(updated, cst.SimpleStatementLine)
        nodes = [self.nodes.get(small) for small in original.body]
        changed = [*(node for node in nodes if node is not None), *self.replaced]
        lines = self.in_place_of(original, updated, nodes)
        lines = comments.without_false(original, changed, lines)
        plans = [self.plan.statements[node] for node in nodes if node in self.plan.statements]
        defined = self.definitions(code for each in plans for code in each.definitions)
        if defined and lines:
            apart = [*APART, *comments.from_first_comment(comments.leading_lines(lines[0]))]
            lines[0] = lines[0].with_changes(leading_lines=apart)
        return [*defined, *lines]

    def in_place_of(
        self,
        original: cst.SimpleStatementLine,
        updated: cst.SimpleStatementLine,
        nodes: Sequence[ast.AST | None],
    ) -> list[Line]:
        edits = [self.plan.statements[node] for node in nodes if node in self.plan.statements]
        if any(node in self.import_plan.statements for node in nodes):
            if len(nodes) == 1 or not self.comes_apart(nodes):
                lines = self.import_lines.rewrite(nodes, updated, self.marks(nodes))
                return lines or self.leave(original, updated, about_it=False)
            lines = [new for made in self.each_alone(nodes, updated) for new in made]
            return self.replace(original, updated, lines)
        replaced, self.replaced = self.replaced, []
        kept = comments.of_replaced_calls(self.module, replaced, self.plan.references)
        if self.new:
            updated = self.fitted(original, updated)
        node = nodes[0]
        if len(nodes) == 1 and node is not None and edits and edits[0].departs:
            return self.depart(node, original, updated, edits[0])
        if kept and not (edits and edits[0].replacement is not None):
            above = self.above(node, updated) if node is not None else ()
            lines = self.statement(node, updated, above)
            comments.put_beside(kept, lines, self.tree, self.width(replaced[0]))
            return self.replace(original, updated, lines) if edits else lines
        if not edits:
            return [updated]
        lines = []
        for node, small in zip(nodes, updated.body, strict=True):
            above = self.above(node, updated) if node is not None else ()
            lines += self.statement(node, _alone(small), above)
        return self.replace(original, updated, lines)

    def comes_apart(self, nodes: Sequence[ast.AST | None]) -> bool:
        """Whether the statements of a line, not all of them imports, need lines of their own."""
        if all(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes):
            return False
        imports = self.import_plan.statements
        changes = [imports[node] for node in nodes if node in imports]
        new = any(change.preceding or change.following for change in changes)
        return new or not self.plan.statements.keys().isdisjoint(nodes)

    def each_alone(
        self,
        nodes: Sequence[ast.AST | None],
        updated: cst.SimpleStatementLine | cst.SimpleStatementSuite,
    ) -> Iterator[list[Line]]:
        """What stands in place of each of the statements that share a line."""
        for node, small in zip(nodes, updated.body, strict=True):
            if node in self.import_plan.statements:
                yield self.import_lines.rewrite([node], _alone(small), self.marks([node]))
            else:
                yield self.statement(node, _alone(small))

    def marks(self, nodes: Sequence[ast.AST | None]) -> list[Mark]:
        edits = [self.plan.statements[node] for node in nodes if node in self.plan.statements]
        return [mark for each in edits for mark in each.marks]

    def replace(
        self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine, lines: list[Line]
    ) -> list[Line]:
        """The new lines, or what a removed line leaves behind."""
        if lines:
            return comments.hand_over(updated, lines)
        last = self.nodes.get(original.body[-1])
        is_continued = isinstance(last, ast.stmt) and self.plan.is_continued(last, self.module)
        about_all = is_continued and comments.head_paragraph(updated.leading_lines)
        return self.leave(original, updated, about_it=not about_all)

    def leave(
        self, original: cst.CSTNode, updated: cst.SimpleStatementLine, *, about_it: bool = True
    ) -> list[Line]:
        """What a line that is removed leaves behind."""
        self.removed.add(original)
        return comments.leave(updated.leading_lines, about_it=about_it)

    def depart(
        self,
        node: ast.AST,
        original: cst.CSTNode,
        line: cst.SimpleStatementLine,
        edits: StatementEdits,
    ) -> list[Line]:
        """Put a moving statement aside, with the comments right above it."""
        staying = list(line.leading_lines)
        attached: list[cst.EmptyLine] = []
        while staying and staying[-1].comment is not None:
            attached.insert(0, staying.pop())
        self.updated[node] = comments.add_markers(
            line.with_changes(leading_lines=attached), edits.marks, width=self.width(node)
        )
        line = line.with_changes(leading_lines=staying)
        return self.leave(original, line, about_it=False)

    def fitted(
        self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        """A line with new expressions in it, broken at those if they made it too long.

        One that its author wrote too long stays in one piece, if it is not much longer now.
        """
        indent = self.indents.get(original, "")
        new, self.new = self.new, set()
        before = layout.widths_above(self.line_length, original, self.tree, indent)
        after = layout.widths_above(self.line_length, updated, self.tree, indent)
        if layout.is_careless(before, after, self.line_length):
            return updated
        fitted = layout.fit_line(updated, self.tree, indent, self.line_length, new, before)
        if layout.comment_sticks_out(original, self.tree, indent, self.line_length):
            return fitted
        return layout.comment_above(fitted, self.tree, indent, self.line_length)

    def headed(self, original: cst.CSTNode, updated: headers.Headed) -> headers.Headed:
        """A compound statement with new expressions in its first line."""
        original = of_kind(original, type(updated))
        indent = self.indents.get(original, "")
        limit = self.line_length - 2 * (original in self.following)
        return headers.fitted(original, updated, self.tree, indent, limit, self.made)

    def statement(
        self, node: ast.AST | None, line: Line, above: Sequence[cst.EmptyLine] = ()
    ) -> list[Line]:
        """What stands in place of one statement; ``above`` are the comments over it."""
        edits = self.plan.statements.get(node) if node is not None else None
        if node is None or edits is None:
            return [line]
        self.updated[node] = line
        lines = blocks.join_conditions(self.render(edits.before, node))
        if edits.replacement is not None:
            new = self.render(edits.replacement, node)
            if new:
                kept = comments.of_kept_arguments(self.module, node, self.plan.references)
                comments.put_beside(kept, new, self.tree, self.width(node))
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
        following = self.render(edits.after, node)
        empty = 2 * isinstance(node, ast.ClassDef)  # as PEP 8 has it
        if following and isinstance(following[0], cst.FunctionDef):
            empty = max(empty, isinstance(self.module.table.parents[node], ast.ClassDef))
        if following and empty:
            following[0] = following[0].with_changes(
                leading_lines=[cst.EmptyLine(indent=False)] * empty
            )
        lines += following
        if edits.marks:
            lines = lines or [comments.placeholder()]
            at = {mark: comments.line_of(mark, lines) for mark in edits.marks}
            for index, made in enumerate(lines):
                marks = [mark for mark in edits.marks if at[mark] == index]
                over = () if index else above
                lines[index] = comments.add_markers(made, marks, over, width=self.width(node))
        return lines

    def width(self, node: ast.AST) -> int:
        """How long a comment above a statement may be."""
        line = self.module.source.lines[getattr(node, "lineno", 1) - 1]
        indent = line[: len(line) - len(line.lstrip())]
        # What shares a line with its ``if`` gets a line of its own, one step deeper.
        deeper = getattr(self.module.table.parents[node], "lineno", 0) == getattr(node, "lineno", 1)
        return self.line_length - len(indent.expandtabs(4)) - 4 * deeper

    def render(self, codes: Iterable[Code], node: ast.AST) -> list[Line]:
        """New code as statements that stand beside a node, or in its place."""
        first = getattr(node, "lineno", 1)
        own = self.module.source.lines[first - 1 : getattr(node, "end_lineno", first)]
        indent = own[0][: len(own[0]) - len(own[0].lstrip())]
        apart = [cst.EmptyLine(indent=False)] * (1 if indent else 2)  # PEP 8's empty lines
        found: list[Line] = []
        for code in codes:
            lines = [
                layout.fit(line, self.tree, indent, self.line_length, own[1:])
                for line in template.statements(code, self.lookup, self.tree)
            ]
            if isinstance(lines[0], cst.FunctionDef) and not self.is_first(node):
                lines[0] = lines[0].with_changes(leading_lines=apart)
            last = lines[-1]
            if isinstance(last, cst.FunctionDef) and not self.is_last(node):
                body = of_kind(last.body, cst.IndentedBlock)
                lines[-1] = last.with_changes(body=body.with_changes(footer=apart))
            found += lines
        return found

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

    def above(self, node: ast.AST, line: cst.CSTNode) -> Sequence[cst.EmptyLine]:
        """The comments above a statement; those over a module's first are in its header."""
        leading = comments.leading_lines(line)
        body = self.module.source.tree.body
        first = bool(body) and body[0] is node
        header = [e for e in self.tree.header if isinstance(e, cst.EmptyLine)]
        return (*header, *leading) if first else leading

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
        for made in self.each_alone(nodes, updated):
            whole &= len(made) == 1 and not comments.leading_lines(made[0])
            lines += made
        if whole and self.plan.statements.keys().isdisjoint(nodes):
            body = [
                new.body[0].with_changes(semicolon=old.semicolon)
                for new, old in zip(lines, updated.body, strict=True)
                if isinstance(new, cst.SimpleStatementLine)
            ]
            return updated.with_changes(body=body)
        return cst.IndentedBlock(body=lines, header=updated.trailing_whitespace)

    def compound(self, node: ast.AST, updated: cst.CSTNode) -> Replacement:
        edits = self.plan.statements.get(node)
        if edits is None:
            return updated
        assert isinstance(updated, cst.BaseCompoundStatement)
        if edits.alone:
            updated = cst.ensure_type(updated, cst.If).with_changes(orelse=None)
        if edits.dropped:
            chain = cst.ensure_type(updated, cst.If)
            following = chain.orelse
            if getattr(self.module.table.parents[node], "orelse", None) == [node]:  # an ``elif``
                return cst.RemoveFromParent() if following is None else following
            if not isinstance(following, cst.If):
                return _in_place(blocks.else_body(chain))
            updated = blocks.next_branch(chain, following)
        above = self.above(node, updated)
        bare = updated.with_changes(leading_lines=())
        if edits.unwrap:
            lines = self.render(edits.before, node)
            lines += blocks.without_items(cst.ensure_type(bare, cst.With), edits.unwrap)
            if lines:
                width = self.width(node)
                lines[0] = comments.add_markers(lines[0], edits.marks, above, width=width)
        else:
            lines = self.statement(node, bare, above)
        if not lines:
            return _in_place(comments.leave(updated.leading_lines))
        lines[0] = comments.put_above(updated.leading_lines, lines[0])
        return _in_place([*self.definitions(edits.definitions), *lines])

    def definitions(self, codes: Iterable[Code]) -> list[Line]:
        """Functions to stand above a statement at the top level, which keeps its comments."""
        lines = [
            layout.fit(line, self.tree, "", self.line_length)
            for code in codes
            for line in template.statements(code, self.lookup, self.tree)
        ]
        return [line.with_changes(leading_lines=APART) for line in lines]


def _in_place(lines: Sequence[Line]) -> Replacement:
    """Lines as LibCST takes them in the place of one."""
    if not lines:
        return cst.RemoveFromParent()
    return lines[0] if len(lines) == 1 else cst.FlattenSentinel(lines)


def _alone(small: cst.BaseSmallStatement) -> cst.SimpleStatementLine:
    """A statement on a line of its own."""
    return cst.SimpleStatementLine([small.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])
