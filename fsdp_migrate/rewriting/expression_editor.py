"""What stands in the place of expressions: new ones, changed calls and dictionaries."""

from __future__ import annotations

import ast

import libcst as cst

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.edits import AddItem, AddKeyword, RemoveArgument, RemoveItem
from fsdp_migrate.rewriting import breaking, sequence, template
from fsdp_migrate.rewriting.edit_plan import EditError, EditPlan
from fsdp_migrate.rewriting.imports.lines import ImportLines
from fsdp_migrate.rewriting.imports.plan import ImportPlan
from fsdp_migrate.rewriting.locate import Located


class ExpressionEditor(cst.CSTTransformer):
    """The part of the pass that makes expressions; statements take them over."""

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
        self.import_lines = ImportLines(import_plan, module, tree, line_length)
        self.line_length = line_length
        self.updated: dict[ast.AST, cst.CSTNode] = {}
        self.new: set[cst.CSTNode] = set()  # expressions that edits made, since the last line
        self.made: set[cst.CSTNode] = set()  # all of them
        self.written: set[cst.CSTNode] = set()  # those that stand in the place of others
        self.following: set[cst.CSTNode] = set()  # what begins with ``elif`` or ``else``
        self.replaced: list[ast.AST] = []  # expressions that were, since the last line
        self.removed: set[cst.CSTNode] = set()  # statements that are gone

    def lookup(self, node: ast.expr) -> cst.BaseExpression:
        """The LibCST node of an old expression that new code takes over, edited already, or a path
        further below."""
        found = self.updated.get(node)
        if found is None and access_path(node) is not None and not self.is_edited(node):
            return cst.parse_expression(ast.unparse(node))  # of a statement further down
        if not isinstance(found, cst.BaseExpression):
            raise EditError(f"the code at line {node.lineno} is used before it is reached")
        return found.visit(breaking.Dedent(self.shift(node)))  # type: ignore[return-value]

    def is_edited(self, node: ast.expr) -> bool:
        """Whether anything in an expression becomes something else."""
        return any(inner in self.plan.expressions for inner in ast.walk(node))

    def shift(self, node: ast.expr) -> int:
        """How much deeper than its statement the line stands on which ``node`` begins."""
        statement = self.module.table.statement(node)
        if node.lineno in {statement.lineno, node.end_lineno}:
            return 0
        text = self.module.source.lines[node.lineno - 1]
        return max(0, len(text) - len(text.lstrip()) - statement.col_offset)

    def expression(self, node: ast.AST, updated: cst.BaseExpression) -> cst.BaseExpression:
        if node in self.plan.calls:
            assert isinstance(node, ast.Call)
            assert isinstance(updated, cst.Call)
            updated = self.call(node, updated)
            self.updated[node] = updated
            self.is_new(updated)
        if node in self.plan.displays:
            assert isinstance(node, ast.Dict)
            assert isinstance(updated, cst.Dict)
            updated = self.display(node, updated)
            self.updated[node] = updated
            self.is_new(updated)
        new = self.plan.expressions.get(node)
        if new is None:
            return updated
        self.updated[node] = updated
        result = template.expression(new, self.lookup, self.tree)
        within = (ast.Tuple, ast.GeneratorExp)  # their parentheses go with them
        own = getattr(updated, "lpar", ()) and not isinstance(node, within)
        if own and not getattr(result, "lpar", ()):
            result = breaking.operands_as_in(updated, result)
            result = result.with_changes(lpar=updated.lpar, rpar=updated.rpar)
        elif not isinstance(node, ast.Call) or not isinstance(result, cst.Call):
            goes_on = _goes_on(self.module, node, result)
            binds = _is_operand(self.module, node) and not goes_on
            if not binds and isinstance(result, (cst.Lambda, cst.IfExp)):
                binds = _is_in_choice(self.module, node)
            result = template.parenthesized(result) if binds else result
        self.is_new(result)
        self.written.add(result)
        self.replaced.append(node)
        return result

    def is_new(self, expression: cst.BaseExpression) -> None:
        self.new.add(expression)
        self.made.add(expression)

    def display(self, node: ast.Dict, updated: cst.Dict) -> cst.Dict:
        edits = self.plan.displays[node]
        gone = {node.values.index(e.value) for e in edits if isinstance(e, RemoveItem)}
        closing = updated.rbrace.whitespace_before
        elements, closing = sequence.without_items(updated.elements, gone, closing)
        for edit in edits:
            if isinstance(edit, AddItem):
                value = template.expression(edit.code, self.lookup, self.tree)
                opening = updated.lbrace.whitespace_after
                elements = sequence.with_item(elements, edit.key, value, opening)
        brace = updated.rbrace.with_changes(whitespace_before=closing)
        left = updated.with_changes(elements=elements, rbrace=brace)
        is_blank = not elements and "".join(self.tree.code_for_node(left).split()) == "{}"
        return cst.Dict([], lpar=left.lpar, rpar=left.rpar) if is_blank else left

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


OPERATORS = (ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.Attribute, ast.Await)


def _is_operand(module: Module, node: ast.AST) -> bool:
    """Whether ``node`` stands where a looser expression would need parentheses."""
    match module.table.parents.get(node):
        case ast.Call(func=first) | ast.Subscript(value=first):
            return first is node
        case parent:
            return isinstance(parent, OPERATORS)


def _goes_on(module: Module, node: ast.AST, new: cst.BaseExpression) -> bool:
    """Whether ``a and b`` stands in the place of the first that ``and`` joins; so ``or``."""
    parent = module.table.parents.get(node)
    if not isinstance(parent, ast.BoolOp) or not isinstance(new, cst.BooleanOperation):
        return False
    joins = cst.And if isinstance(parent.op, ast.And) else cst.Or
    return node is parent.values[0] and isinstance(new.operator, joins)


def _is_in_choice(module: Module, node: ast.AST) -> bool:
    """Whether a lambda or a conditional expression in the place of ``node`` would go on: it stands
    in front of an ``else``, or in a comprehension."""
    parent = module.table.parents.get(node)
    if isinstance(parent, ast.IfExp):
        return node is not parent.orelse
    return isinstance(parent, ast.comprehension)
