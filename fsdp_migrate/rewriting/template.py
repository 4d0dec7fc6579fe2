"""Turn :class:`fsdp_migrate.planning.edits.Code` into LibCST nodes, holes filled with old nodes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Sequence

import libcst as cst

from fsdp_migrate.planning.edits import Code
from fsdp_migrate.rewriting.layout import Line

Lookup = Callable[[ast.expr], cst.BaseExpression]

_ATOMS = (
    cst.Name,
    cst.Attribute,
    cst.Call,
    cst.Subscript,
    cst.BaseNumber,
    cst.SimpleString,
    cst.FormattedString,
    cst.List,
    cst.Set,
    cst.Dict,
    cst.ListComp,
    cst.SetComp,
    cst.DictComp,
)
# Parents in which any expression may stand without parentheses.
_ROOMY = (
    cst.Arg,
    cst.Assign,
    cst.AnnAssign,
    cst.Return,
    cst.Expr,
    cst.Element,
    cst.DictElement,
    cst.If,
    cst.Index,
    cst.Yield,
)


def expression(new: Code, lookup: Lookup, module: cst.Module) -> cst.BaseExpression:
    """One expression; parentheses are added where a hole's content would bind differently."""
    nodes: list[ast.expr] = []
    text = new.flatten(nodes)
    parsed = cst.parse_expression(text, config=module.config_for_parsing)
    if isinstance(parsed, cst.Name) and parsed.value.startswith("__fsdp_migrate_"):
        return lookup(nodes[0])
    filled = parsed.visit(_Fill(parsed, nodes, lookup, module))
    assert isinstance(filled, cst.BaseExpression)
    return filled


def statements(new: Code, lookup: Lookup, module: cst.Module) -> list[Line]:
    """New statements. The template's four-space indents and ``\\n`` become those of the file."""
    nodes: list[ast.expr] = []
    text = _in_file_style(new.flatten(nodes), module)
    parsed = cst.parse_module(text, config=module.config_for_parsing)
    filled = parsed.visit(_Fill(parsed, nodes, lookup, module))
    body = list(filled.body)
    if parsed.header:  # comments at the top of a template belong to its first statement
        first = body[0]
        assert isinstance(first, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
        leading = (*parsed.header, *getattr(first, "leading_lines", ()))
        body[0] = first.with_changes(leading_lines=leading)
    return [_without_spaces_above(line) for line in body]


def _without_spaces_above(line: Line) -> Line:
    """A statement whose empty lines above are not indented."""
    above = getattr(line, "leading_lines", ())
    kept = [e if e.comment is not None else e.with_changes(indent=False) for e in above]
    return line.with_changes(leading_lines=kept) if above else line


def _in_file_style(text: str, module: cst.Module) -> str:
    lines = []
    for line in text.strip("\n").split("\n"):
        stripped = line.lstrip(" ")
        depth = (len(line) - len(stripped)) // 4
        lines.append(module.default_indent * depth + stripped if stripped else "")
    return module.default_newline.join(lines) + module.default_newline


class _Fill(cst.CSTTransformer):
    def __init__(
        self, tree: cst.CSTNode, nodes: Sequence[ast.expr], lookup: Lookup, module: cst.Module
    ) -> None:
        super().__init__()
        self.nodes = nodes
        self.lookup = lookup
        self.module = module
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        stack: list[cst.CSTNode] = [tree]
        while stack:
            node = stack.pop()
            for child in node.children:
                self.parents[child] = node
                stack.append(child)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        name = original_node.value
        if not name.startswith("__fsdp_migrate_"):
            return updated_node
        node = self.lookup(self.nodes[int(name.removeprefix("__fsdp_migrate_").strip("_"))])
        parent = self.parents.get(original_node)
        if getattr(node, "lpar", ()):
            return node
        # Inside brackets a line break is free; at statement level it needs parentheses.
        bracketed = isinstance(parent, (cst.Arg, cst.Element, cst.DictElement, cst.Index))
        fits = isinstance(node, _ATOMS) or isinstance(parent, _ROOMY) or _binds(node, parent)
        fits = fits and not isinstance(node, cst.GeneratorExp)
        if fits and (bracketed or self._breaks_well(node)):
            return node
        return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])

    def _breaks_well(self, node: cst.BaseExpression) -> bool:
        text = self.module.code_for_node(node)
        if "\n" not in text and "\r" not in text:
            return True
        try:
            ast.parse(text.strip())
        except SyntaxError:
            return False
        return True


def _binds(node: cst.BaseExpression, parent: cst.CSTNode | None) -> bool:
    """Whether ``node`` binds tighter than the operator it becomes a part of."""
    loose = (cst.IfExp, cst.Lambda, cst.NamedExpr, cst.Tuple, cst.Yield)
    if isinstance(parent, cst.IfExp):
        return not isinstance(node, loose)
    if isinstance(parent, cst.BooleanOperation):
        return not isinstance(node, (*loose, cst.BooleanOperation))
    return False


def without_lambda(arg: cst.Arg, new: Container[cst.CSTNode]) -> cst.Arg:
    """``default_factory=Policy`` for ``default_factory=lambda: Policy()``, where the call is
    new."""
    function, keyword = arg.value, arg.keyword
    if keyword is None or keyword.value != "default_factory":
        return arg
    if not isinstance(function, cst.Lambda) or function.params.params or function.lpar:
        return arg
    call = function.body
    if not isinstance(call, cst.Call) or call.args or call not in new:
        return arg
    return arg.with_changes(value=call.func)


def parenthesized(node: cst.BaseExpression) -> cst.BaseExpression:
    """``node`` with parentheses unless it binds as tightly as a name."""
    if isinstance(node, _ATOMS) or node.lpar:
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
