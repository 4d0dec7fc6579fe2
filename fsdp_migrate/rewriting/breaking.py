"""How an expression is broken over lines, the way black would: one argument per line."""

from __future__ import annotations

import libcst as cst

Breakable = (
    cst.Call
    | cst.Dict
    | cst.DictComp
    | cst.IfExp
    | cst.List
    | cst.ListComp
    | cst.SetComp
    | cst.Tuple
)
Bracketed = Breakable | cst.Subscript

_NO_SPACE = cst.SimpleWhitespace("")


def line_break(indent: str) -> cst.ParenthesizedWhitespace:
    """A line break inside brackets, ``indent`` deeper than the block."""
    return cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace(indent))


def one_operand_per_line(test: cst.BooleanOperation, step: str) -> cst.BooleanOperation:
    """``(a and b)`` with a line for each operand, as formatters put a condition."""
    inner, closing = line_break(step), line_break("")
    operator = type(test.operator)

    def split(node: cst.BaseExpression) -> cst.BaseExpression:
        if not isinstance(node, cst.BooleanOperation) or not isinstance(node.operator, operator):
            return node
        if node.lpar and node is not test:
            return node
        before = node.operator.with_changes(whitespace_before=inner)
        return node.with_changes(left=split(node.left), operator=before)

    result = cst.ensure_type(split(test), cst.BooleanOperation)
    return result.with_changes(
        lpar=[cst.LeftParen(whitespace_after=inner)],
        rpar=[cst.RightParen(whitespace_before=closing)],
    )


def operands_as_in(old: cst.BaseExpression, new: cst.BaseExpression) -> cst.BaseExpression:
    """What is left of a condition, with a line for each operand where the condition had one."""
    if not isinstance(old, cst.BooleanOperation) or not isinstance(new, cst.BooleanOperation):
        return new
    space, operator = old.operator.whitespace_before, type(old.operator)
    if not isinstance(space, cst.ParenthesizedWhitespace) or space.first_line.comment is not None:
        return new

    def split(node: cst.BaseExpression) -> cst.BaseExpression:
        if not isinstance(node, cst.BooleanOperation) or not isinstance(node.operator, operator):
            return node
        if node.lpar:
            return node
        before = node.operator.with_changes(whitespace_before=space)
        return node.with_changes(left=split(node.left), operator=before)

    return split(new)


def in_parentheses(line: cst.SimpleStatementLine, step: str) -> cst.SimpleStatementLine | None:
    """``x = a if b else c`` with the value on a line of its own, as formatters put it."""
    small = line.body[0] if len(line.body) == 1 else None
    if not isinstance(small, (cst.Assign, cst.AnnAssign, cst.Return)):
        return None
    value = small.value
    operators = (cst.IfExp, cst.BooleanOperation, cst.BinaryOperation, cst.Comparison)
    if not isinstance(value, operators) or value.lpar:
        return None
    opening = cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace(step))
    closing = cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace(""))
    return line.with_changes(
        body=[
            small.with_changes(
                value=value.with_changes(
                    lpar=[cst.LeftParen(whitespace_after=opening)],
                    rpar=[cst.RightParen(whitespace_before=closing)],
                )
            )
        ]
    )


def branches_on_lines(line: cst.SimpleStatementLine, step: str) -> cst.SimpleStatementLine | None:
    """``x = a if b else c`` with a line for each branch, where the value is too long for one."""
    small = line.body[0] if len(line.body) == 1 else None
    if not isinstance(small, (cst.Assign, cst.AnnAssign, cst.Return)):
        return None
    value = small.value
    if not isinstance(value, cst.IfExp) or value.lpar:
        return None
    return line.with_changes(body=[small.with_changes(value=explode(value, step, ""))])


def elements_in_parentheses(line: cst.SimpleStatementLine, step: str) -> cst.SimpleStatementLine:
    """``return a, b`` with each element on a line of its own, as formatters put it."""
    small = line.body[0] if len(line.body) == 1 else None
    if not isinstance(small, (cst.Assign, cst.Return)):
        return line
    value = small.value
    if not isinstance(value, cst.Tuple) or len(value.elements) < 2 or value.lpar:
        return line
    opened = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return line.with_changes(body=[small.with_changes(value=explode(opened, step, ""))])


def put_on_one_line(node: Bracketed, unit: str, base: str) -> Bracketed | None:
    """An expression with all that its brackets hold on one line of its own, which black tries
    first."""
    inner, closing = line_break(base + unit), line_break(base)
    if isinstance(node, cst.Subscript):
        return node.with_changes(
            lbracket=node.lbracket.with_changes(whitespace_after=inner),
            rbracket=node.rbracket.with_changes(whitespace_before=closing),
        )
    if isinstance(node, cst.IfExp):
        return node.with_changes(
            lpar=[cst.LeftParen(whitespace_after=inner)],
            rpar=[cst.RightParen(whitespace_before=closing)],
        )
    if not isinstance(node, cst.Call):
        return None
    args = list(node.args)
    args[-1] = args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=closing)
    return node.with_changes(args=args, whitespace_before_args=inner)


def is_breakable(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Call):
        return bool(node.args)
    if isinstance(node, (cst.Dict, cst.List)):
        return bool(node.elements)
    if isinstance(node, cst.Tuple):
        return len(node.elements) > 1 and len(node.lpar) == 1
    return isinstance(node, (cst.DictComp, cst.IfExp, cst.ListComp, cst.SetComp))


def is_broken(node: cst.CSTNode) -> bool:
    opening: cst.CSTNode | None = None
    if isinstance(node, cst.Call):
        opening = node.whitespace_before_args
    elif isinstance(node, (cst.Dict, cst.DictComp, cst.SetComp)):
        opening = node.lbrace.whitespace_after
    elif isinstance(node, (cst.List, cst.ListComp, cst.Subscript)):
        opening = node.lbracket.whitespace_after
    elif isinstance(node, (cst.Tuple, cst.IfExp)) and node.lpar:
        opening = node.lpar[0].whitespace_after
    return isinstance(opening, cst.ParenthesizedWhitespace)


def explode(node: Breakable, unit: str, base: str) -> Breakable:
    """One argument or element a line, indented one ``unit`` deeper, with a trailing comma."""
    inner = line_break(base + unit)
    closing = line_break(base)
    if isinstance(node, cst.Call):
        args = [a.with_changes(comma=cst.Comma(whitespace_after=inner)) for a in node.args]
        args[-1] = args[-1].with_changes(
            comma=cst.Comma(whitespace_after=closing), whitespace_after_arg=_NO_SPACE
        )
        return node.with_changes(args=args, whitespace_before_args=inner)
    if isinstance(node, (cst.DictComp, cst.ListComp, cst.SetComp)):
        return _explode_comprehension(node, inner, closing)
    if isinstance(node, cst.IfExp):
        return node.with_changes(
            lpar=[cst.LeftParen(whitespace_after=inner)],
            rpar=[cst.RightParen(whitespace_before=closing)],
            whitespace_before_if=inner,
            whitespace_before_else=inner,
        )
    elements = [e.with_changes(comma=cst.Comma(whitespace_after=inner)) for e in node.elements]
    elements[-1] = elements[-1].with_changes(comma=cst.Comma(whitespace_after=closing))
    if isinstance(node, cst.Dict):
        opening = node.lbrace.with_changes(whitespace_after=inner)
        return node.with_changes(elements=elements, lbrace=opening)
    if isinstance(node, cst.Tuple):
        opened = node.lpar[0].with_changes(whitespace_after=inner)
        return node.with_changes(elements=elements, lpar=[opened])
    return node.with_changes(
        elements=elements, lbracket=node.lbracket.with_changes(whitespace_after=inner)
    )


def _explode_comprehension(
    node: cst.DictComp | cst.ListComp | cst.SetComp,
    inner: cst.ParenthesizedWhitespace,
    closing: cst.ParenthesizedWhitespace,
) -> cst.DictComp | cst.ListComp | cst.SetComp:
    """The element, each ``for`` and each ``if`` on a line of its own."""
    loops = [node.for_in]
    while loops[-1].inner_for_in is not None:
        loops.append(loops[-1].inner_for_in)
    broken: cst.CompFor | None = None
    for loop in reversed(loops):
        broken = loop.with_changes(
            whitespace_before=inner,
            ifs=[test.with_changes(whitespace_before=inner) for test in loop.ifs],
            inner_for_in=broken,
        )
    if isinstance(node, (cst.DictComp, cst.SetComp)):
        return node.with_changes(
            for_in=broken,
            lbrace=node.lbrace.with_changes(whitespace_after=inner),
            rbrace=node.rbrace.with_changes(whitespace_before=closing),
        )
    return node.with_changes(
        for_in=broken,
        lbracket=node.lbracket.with_changes(whitespace_after=inner),
        rbracket=node.rbracket.with_changes(whitespace_before=closing),
    )


class Dedent(cst.CSTTransformer):
    """Move the continuation lines of an expression to the left, because its first line moves."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns = columns

    def on_visit(self, node: cst.CSTNode) -> bool:
        return self.columns > 0

    def leave_ParenthesizedWhitespace(
        self,
        original_node: cst.ParenthesizedWhitespace,
        updated_node: cst.ParenthesizedWhitespace,
    ) -> cst.ParenthesizedWhitespace:
        indent = updated_node.last_line.value
        if not updated_node.indent or len(indent) < self.columns:
            return updated_node
        last = cst.SimpleWhitespace(indent[self.columns :])
        return updated_node.with_changes(last_line=last)
