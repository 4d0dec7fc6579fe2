"""Break new lines that are too long, at the expressions that formatters would choose."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Generic, TypeVar

import libcst as cst

from fsdp_migrate.rewriting import breaking
from fsdp_migrate.syntax.kinds import of_kind

Line = cst.SimpleStatementLine | cst.BaseCompoundStatement
SomeLine = TypeVar("SomeLine", bound=Line)


def fit(
    node: cst.SimpleStatementLine | cst.BaseCompoundStatement,
    module: cst.Module,
    indent: str,
    limit: int,
    kept: Collection[str] = (),
) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
    """A new statement whose lines fit ``limit`` columns, if breaking calls and displays does it.

    Lines that are ``kept`` from what it replaces are as wide as their author wrote them.
    """
    fitted = node.visit(_Fit(module, indent, limit, frozenset(line.strip() for line in kept)))
    assert isinstance(fitted, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
    return fitted


class _Fit(cst.CSTTransformer):
    def __init__(
        self, module: cst.Module, indent: str, limit: int, kept: frozenset[str] = frozenset()
    ) -> None:
        super().__init__()
        self.module = module
        self.indent = indent
        self.limit = limit
        self.kept = kept
        self.opened: list[str] = []  # the indents of the conditions around

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> bool:
        self.indent += self.module.default_indent
        return True

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        self.indent = self.indent[: -len(self.module.default_indent)]
        return updated_node

    def visit_If(self, node: cst.If) -> bool:
        self.opened.append(self.indent)
        return True

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.If:
        indent = self.opened.pop()
        test = updated_node.test
        if not isinstance(test, cst.BooleanOperation) or test.lpar:
            return updated_node
        first = f"{indent}if {self.module.code_for_node(test)}:"
        if len(first.expandtabs(4)) <= self.limit:
            return updated_node
        return updated_node.with_changes(
            test=breaking.one_operand_per_line(test, self.module.default_indent)
        )

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        lines = self.module.code_for_node(_bare(updated_node)).replace("\r", "").split("\n")
        wide = [line for line in lines if len((self.indent + line).expandtabs(4)) > self.limit]
        if all(line.strip() in self.kept for line in wide):
            return updated_node
        return fit_line(updated_node, self.module, self.indent, self.limit)


def fit_line(
    node: SomeLine,
    module: cst.Module,
    indent: str,
    limit: int,
    breakable: set[cst.CSTNode] | None = None,
    own: Sequence[int] = (),
) -> SomeLine:
    """Explode calls and displays, outermost first, until every line fits or nothing is left.

    Of the user's own lines only the new expressions, which are ``breakable``, are exploded, and
    what is around them; a call around them has its arguments on a line of their own if that is
    enough. Lines of the ``own`` widths are the author's, who wrote them too wide. A compound
    statement has no body here.
    """
    widths = widths_above(limit, node, module, indent)
    if widths and isinstance(node, cst.SimpleStatementLine):
        for put in (breaking.in_parentheses, breaking.branches_on_lines):
            wrapped = put(node, module.default_indent)
            if wrapped is not None and not widths_above(limit, wrapped, module, indent):
                return of_kind(wrapped, type(node))
        if wrapped is not None:  # the branches, of which one has to be broken itself
            parted = fit_line(wrapped, module, indent, limit, breakable, own)
            if not widths_above(limit, parted, module, indent):
                return of_kind(parted, type(node))
        node = of_kind(breaking.elements_in_parentheses(node, module.default_indent), type(node))
        widths = widths_above(limit, node, module, indent)
    for outer in _around(node, breakable or set()) if widths else ():
        moved = breaking.put_on_one_line(
            outer, module.default_indent, _indent_at(outer, node, module)
        )
        if moved is not None:
            fitted = _replaced(node, outer, moved)
            if Counter(widths_above(limit, fitted, module, indent)) <= Counter(own):
                return fitted
    for outer in _with_one_line_inside(node, breakable or set()) if widths else ():
        exploded = breaking.explode(outer, module.default_indent, _indent_at(outer, node, module))
        fitted = _replaced(node, outer, exploded)
        if Counter(widths_above(limit, fitted, module, indent)) <= Counter(own):
            return fitted
    if breakable is not None:
        breakable = breakable | set(_around(node, breakable))
    while widths:
        for target in _outermost_first(node, breakable):
            swap = _narrowest(target, node, breakable, module, indent, limit)
            narrower = widths_above(limit, swap.result, module, indent)
            if narrower < widths:
                node, breakable, widths = swap.result, swap.breakable, narrower
                break
        else:
            break
    return node


def _narrowest(
    target: breaking.Breakable,
    line: SomeLine,
    breakable: set[cst.CSTNode] | None,
    module: cst.Module,
    indent: str,
    limit: int,
) -> _Swap[SomeLine]:
    """A line in which an expression is broken: its arguments on one line if they fit there."""
    base = _indent_at(target, line, module)
    exploded = _Swap(line, target, breaking.explode(target, module.default_indent, base), breakable)
    on_one_line = breaking.put_on_one_line(target, module.default_indent, base)
    if on_one_line is None:
        return exploded
    swap = _Swap(line, target, on_one_line, breakable)
    widths = widths_above(limit, swap.result, module, indent)
    return exploded if widths > widths_above(limit, exploded.result, module, indent) else swap


def widths_above(limit: int, node: Line, module: cst.Module, indent: str) -> list[int]:
    """How wide the lines are that are too wide, the widest first."""
    text = module.code_for_node(_bare(node)).replace("\r", "")
    # Lines are written at the block's indent, which code_for_node leaves out.
    widths = (len((indent + part).expandtabs(4)) for part in text.split("\n"))
    return sorted((width for width in widths if width > limit), reverse=True)


def is_careless(before: list[int], after: list[int], limit: int) -> bool:
    """Whether a statement's author wrote it far too wide, and it is not much wider now."""
    third = limit // 3
    careless = before[:1] > [limit + third] and len(before) == len(after)
    return careless and after[0] <= before[0] + third


def _bare(node: SomeLine) -> SomeLine:
    """A line without the comments around it."""
    if isinstance(node, cst.SimpleStatementLine):
        return node.with_changes(leading_lines=(), trailing_whitespace=cst.TrailingWhitespace())
    return node.with_changes(leading_lines=())


# Comments that a tool reads where they stand.
_ADDRESSED = re.compile(r"#\s*(type:|noqa|pylint:|pragma|mypy:|pyre-|pyright:|fmt:|isort:|fsdp-)")


def comment_sticks_out(
    node: cst.SimpleStatementLine, module: cst.Module, indent: str, limit: int
) -> bool:
    """Whether the comment behind a statement is what makes its last line too wide."""
    comment = node.trailing_whitespace.comment
    text = module.code_for_node(node.with_changes(leading_lines=())).rstrip()
    last = (indent + text.split("\n")[-1]).expandtabs(4)
    return comment is not None and len(last) > limit


def is_for_tools(comment: cst.Comment) -> bool:
    """Whether a tool reads a comment, which says something of its line alone."""
    return _ADDRESSED.match(comment.value) is not None


def comment_above(
    node: cst.SimpleStatementLine, module: cst.Module, indent: str, limit: int
) -> cst.SimpleStatementLine:
    """A line whose comment stands above it if there is no room for both, unless a tool reads it."""
    comment = node.trailing_whitespace.comment
    if comment is None or is_for_tools(comment):
        return node
    if not comment_sticks_out(node, module, indent, limit):
        return node
    return node.with_changes(
        leading_lines=[*node.leading_lines, cst.EmptyLine(comment=comment)],
        trailing_whitespace=cst.TrailingWhitespace(),
    )


_HERE = "__fsdp_migrate_here__"


def _indent_at(target: cst.CSTNode, line: Line, module: cst.Module) -> str:
    """The indentation, within its statement, of the line on which an expression begins."""
    text = module.code_for_node(_replaced(_bare(line), target, cst.Name(_HERE))).replace("\r", "")
    found = next(part for part in text.split("\n") if _HERE in part)
    return found[: len(found) - len(found.lstrip())]


def inside_on_one_line(line: SomeLine, call: cst.Call, unit: str) -> SomeLine | None:
    """A line in which a call that is on one line has its arguments on one of their own."""
    moved = None if breaking.is_broken(call) else breaking.put_on_one_line(call, unit, "")
    return None if moved is None else _replaced(line, call, moved)


class _Swap(cst.CSTTransformer, Generic[SomeLine]):
    """A line with one expression in the place of another, and what of it is breakable then.

    LibCST makes every node anew around a change, so that a set of nodes must follow.
    """

    def __init__(
        self,
        line: SomeLine,
        old: cst.CSTNode,
        new: cst.CSTNode,
        breakable: set[cst.CSTNode] | None,
    ) -> None:
        super().__init__()
        self.old, self.new = old, new
        self.tracked = breakable or set()
        found: set[cst.CSTNode] = {new, *new.children}
        self.breakable = None if breakable is None else found
        self.found = found
        self.result = of_kind(line.visit(self), type(line))

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        if original_node is self.old:
            return self.new
        if original_node in self.tracked:
            self.found.add(updated_node)
        return updated_node


def _replaced(node: SomeLine, old: cst.CSTNode, new: cst.CSTNode) -> SomeLine:
    result: object = node.deep_replace(old, new)
    return of_kind(result, type(node))


def _outermost_first(
    node: cst.CSTNode, breakable: set[cst.CSTNode] | None
) -> Iterator[breaking.Breakable]:
    """The breakable expressions that are still on one line."""
    queue: list[tuple[cst.CSTNode, bool]] = [(node, breakable is None)]
    while queue:
        current, ours = queue.pop(0)
        ours = ours or (breakable is not None and current in breakable)
        if ours and breaking.is_breakable(current) and not breaking.is_broken(current):
            yield current  # type: ignore[misc]
        queue += [(child, ours) for child in _breakable_children(current)]


def _around(
    node: cst.CSTNode, new: set[cst.CSTNode], *, of_type: bool = False
) -> Iterator[breaking.Bracketed]:
    """The user's calls and displays, and subscripts of a type, that are on one line and are given
    something new, the outermost first."""
    if node in new:
        return
    bare = isinstance(node, cst.IfExp) and not node.lpar
    has_brackets = (breaking.is_breakable(node) and not bare) or (
        of_type and isinstance(node, cst.Subscript)
    )
    if has_brackets and not breaking.is_broken(node) and _holds(node, new):
        yield node  # type: ignore[misc]
    of_type = of_type or isinstance(node, cst.Annotation)
    for child in _breakable_children(node):
        yield from _around(child, new, of_type=of_type)


def _with_one_line_inside(node: cst.CSTNode, new: set[cst.CSTNode]) -> Iterator[cst.Call]:
    """The user's calls whose arguments are on one line of their own, and have something new: where
    that line is too wide now, formatters give each argument one."""
    if node in new:
        return
    if (
        isinstance(node, cst.Call)
        and len(node.args) > 1
        and breaking.is_broken(node)
        and _holds(node, new)
    ):
        commas = (argument.comma for argument in node.args[:-1])
        spaces = [c.whitespace_after for c in commas if isinstance(c, cst.Comma)]
        if all(isinstance(space, cst.SimpleWhitespace) for space in spaces):
            yield node
    for child in _breakable_children(node):
        yield from _with_one_line_inside(child, new)


def _breakable_children(node: cst.CSTNode) -> Sequence[cst.CSTNode]:
    """What is inside of an expression; nothing of an f-string, which ends with its line."""
    return () if isinstance(node, cst.FormattedString) else node.children


def _holds(node: cst.CSTNode, new: set[cst.CSTNode]) -> bool:
    return any(child in new or _holds(child, new) for child in node.children)
