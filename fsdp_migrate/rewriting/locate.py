"""Find LibCST nodes by the span of the ``ast`` node they stand for.

The text is generated once, by a state that keeps count of lines and columns. That costs a third of
``PositionProvider``, because only wanted positions are recorded. It also gives the ancestors of
wanted nodes, so that the editing pass can skip every other subtree, and the generated text, which
must equal the input.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import libcst as cst
from libcst._nodes.internal import CodegenState  # the hook PositionProvider itself is built on

from fsdp_migrate.rewriting.abridged import AbridgedText
from fsdp_migrate.syntax.kinds import present
from fsdp_migrate.syntax.source import Source

Span = tuple[int, int, int, int]
PARENTHESISED = (cst.Tuple, cst.GeneratorExp)


@dataclass
class Located:
    """The LibCST nodes that were looked for."""

    nodes: dict[cst.CSTNode, ast.AST] = field(default_factory=dict)
    dirty: set[cst.CSTNode] = field(default_factory=set)  # located nodes and their ancestors
    indents: dict[cst.CSTNode, str] = field(default_factory=dict)  # dirty lines -> indentation
    text: str = ""


def locate(
    tree: cst.Module, source: Source, wanted: Iterable[ast.AST], part: AbridgedText | None = None
) -> Located:
    """Find the LibCST nodes of the ``wanted`` statements and expressions.

    ``part`` is the abridged text that ``tree`` was made from, if it was not the whole source.
    """
    expressions: dict[Span, ast.AST] = {}
    statements: dict[tuple[int, int], ast.AST] = {}
    for node in wanted:
        if isinstance(node, ast.expr):
            expressions[_span(node, source, part)] = node
        elif isinstance(node, ast.arg):
            expressions[_name_span(node, source, part)] = node
        elif isinstance(node, ast.stmt):
            statements[_start(node, source, part)] = node
    state = _Spans(tree.default_indent, tree.default_newline)
    state.expressions, state.statements = expressions, statements
    tree._codegen(state)
    return Located(state.nodes, state.dirty, state.indents, "".join(state.tokens))


def _start(
    node: ast.expr | ast.stmt | ast.arg, source: Source, part: AbridgedText | None
) -> tuple[int, int]:
    line = node.lineno if part is None else part.line(node.lineno)
    return line, source.column(node.lineno, node.col_offset)


def _span(node: ast.expr, source: Source, part: AbridgedText | None) -> Span:
    end = source.column(present(node.end_lineno), present(node.end_col_offset))
    last = present(node.end_lineno) if part is None else part.line(present(node.end_lineno))
    return (*_start(node, source, part), last, end)


def _name_span(parameter: ast.arg, source: Source, part: AbridgedText | None) -> Span:
    """Where a parameter's name stands, its type left out."""
    line, column = _start(parameter, source, part)
    return line, column, line, column + len(parameter.arg)


class _Spans(CodegenState):
    def __init__(self, default_indent: str, default_newline: str) -> None:
        super().__init__(default_indent, default_newline)
        self.line = 1
        self.column = 0
        self.stack: list[cst.CSTNode] = []
        self.begun: list[tuple[int, int]] = []  # where tuples and generators around begin
        self.called: dict[cst.Call, tuple[int, int]] = {}  # where the functions of calls end
        self.nodes: dict[cst.CSTNode, ast.AST] = {}
        self.dirty: set[cst.CSTNode] = set()
        self.indents: dict[cst.CSTNode, str] = {}
        self.expressions: dict[Span, ast.AST] = {}
        self.statements: dict[tuple[int, int], ast.AST] = {}

    def add_indent_tokens(self) -> None:
        for token in self.indent_tokens:
            self.tokens.append(token)
            self.column += len(token)

    def add_token(self, value: str) -> None:
        self.tokens.append(value)
        if "\n" in value or "\r" in value:
            parts = value.replace("\r\n", "\n").replace("\r", "\n").split("\n")
            self.line += len(parts) - 1
            self.column = len(parts[-1])
        else:
            self.column += len(value)

    def before_codegen(self, node: cst.CSTNode) -> None:
        self.stack.append(node)
        if isinstance(node, PARENTHESISED):
            self.begun.append((self.line, self.column))

    def after_codegen(self, node: cst.CSTNode) -> None:
        # A tuple's parentheses are part of it for ast, and not for LibCST's positions.
        if isinstance(node, PARENTHESISED):
            found = self.expressions.get((*self.begun.pop(), self.line, self.column))
            if found is not None:
                self.found(node, found)
        self.stack.pop()
        call = self.stack[-1] if self.stack else None
        if isinstance(call, cst.Call) and call.func is node:
            self.called[call] = self.line, self.column

    @contextmanager
    def record_syntactic_position(
        self,
        node: cst.CSTNode,
        *,
        start_node: cst.CSTNode | None = None,
        end_node: cst.CSTNode | None = None,
    ) -> Iterator[None]:
        line, column = self.line, self.column
        yield
        if isinstance(node, cst.BaseExpression):
            found = self.expressions.get((line, column, self.line, self.column))
        elif isinstance(node, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
            found = self.statements.get((line, column))
        else:
            return
        if found is not None and node not in self.nodes:
            self.found(node, found)
        match node:  # so are the parentheses of a call that is given nothing but a generator
            case cst.Call(args=[cst.Arg(value=cst.GeneratorExp(lpar=[]) as generator) as given]):
                begins = self.called.pop(node)
                bare = self.expressions.get((*begins, self.line, self.column))
                if bare is not None:
                    self.found(generator, bare)
                    self.dirty.update((given, generator))

    def found(self, node: cst.CSTNode, counterpart: ast.AST) -> None:
        self.nodes[node] = counterpart
        self.dirty.update(self.stack)
        for parent in self.stack:
            if isinstance(parent, cst.SimpleStatementLine | cst.BaseCompoundStatement):
                # Its first line comes before its body, which is indented deeper.
                self.indents.setdefault(parent, "".join(self.indent_tokens))
