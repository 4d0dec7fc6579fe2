"""Break emitted lines that are too long, the way black would: one argument a line."""

from __future__ import annotations

import libcst as cst

Breakable = cst.Call | cst.Dict | cst.List


def fit(
    node: cst.SimpleStatementLine | cst.BaseCompoundStatement,
    module: cst.Module,
    indent: str,
    limit: int,
) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
    """``node`` with calls and dict displays exploded until its lines fit ``limit`` columns."""
    fitted = node.visit(_Fit(module, indent, limit))
    assert isinstance(fitted, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
    return fitted


class _Fit(cst.CSTTransformer):
    def __init__(self, module: cst.Module, indent: str, limit: int) -> None:
        super().__init__()
        self.module = module
        self.indent = indent
        self.limit = limit

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> bool:
        self.indent += self.module.default_indent
        return True

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        self.indent = self.indent[: -len(self.module.default_indent)]
        return updated_node

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        node = updated_node
        broken: list[cst.CSTNode] = []
        for _ in range(4):  # nesting depth worth breaking
            line = node.with_changes(leading_lines=(), trailing_whitespace=_PLAIN)
            lines = self.module.code_for_node(line).replace("\r", "").split("\n")
            width = max(len(self.indent.expandtabs(4) + text) for text in lines)
            if width <= self.limit:
                break
            target = _widest(node, broken, self.module)
            if target is None:
                break
            replacement = explode(target, self.module.default_indent, len(broken))
            broken.append(replacement)
            changed: cst.CSTNode = node.deep_replace(target, replacement)  # type: ignore[arg-type]
            assert isinstance(changed, cst.SimpleStatementLine)
            node = changed
        return node


_PLAIN = cst.TrailingWhitespace()


def _widest(node: cst.CSTNode, broken: list[cst.CSTNode], module: cst.Module) -> Breakable | None:
    """The outermost call or display with contents that is still on one line."""
    queue: list[cst.CSTNode] = [node]
    while queue:
        current = queue.pop(0)
        if isinstance(current, cst.Call) and current.args and not _is_broken(current, module):
            single = len(current.args) == 1 and isinstance(
                current.args[0].value, (cst.Call, cst.Dict, cst.GeneratorExp, cst.ListComp)
            )
            if not single:
                return current
        if isinstance(current, (cst.Dict, cst.List)) and current.elements:  # noqa: SIM102
            if not _is_broken(current, module):
                return current
        queue.extend(current.children)
    return None


def _is_broken(node: Breakable, module: cst.Module) -> bool:
    if isinstance(node, cst.Call):
        opening: cst.CSTNode = node.whitespace_before_args
    elif isinstance(node, cst.Dict):
        opening = node.lbrace.whitespace_after
    else:
        opening = node.lbracket.whitespace_after
    return isinstance(opening, cst.ParenthesizedWhitespace)


def explode(node: Breakable, unit: str, depth: int) -> Breakable:
    """One argument or element a line, indented one ``unit`` deeper, with a trailing comma."""
    inner = line_break(unit * (depth + 1))
    closing = line_break(unit * depth)
    if isinstance(node, cst.Call):
        args = [a.with_changes(comma=cst.Comma(whitespace_after=inner)) for a in node.args]
        args[-1] = args[-1].with_changes(
            comma=cst.Comma(whitespace_after=closing), whitespace_after_arg=_NO_SPACE
        )
        return node.with_changes(args=args, whitespace_before_args=inner)
    elements = [e.with_changes(comma=cst.Comma(whitespace_after=inner)) for e in node.elements]
    elements[-1] = elements[-1].with_changes(comma=cst.Comma(whitespace_after=closing))
    if isinstance(node, cst.Dict):
        opening = node.lbrace.with_changes(whitespace_after=inner)
        return node.with_changes(elements=elements, lbrace=opening)
    return node.with_changes(
        elements=elements, lbracket=node.lbracket.with_changes(whitespace_after=inner)
    )


_NO_SPACE = cst.SimpleWhitespace("")


def line_break(indent: str) -> cst.ParenthesizedWhitespace:
    return cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace(indent))
