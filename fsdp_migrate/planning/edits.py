"""What a rule answers with: edits as data.

Edits name ``ast`` nodes and carry new code as :class:`Code` templates whose holes are old nodes, so
that edits nest (an edited expression may stand inside a moved one). Nothing here touches a tree;
``rewriting/apply.py`` applies what survives. This module must stay free of LibCST: rules import it.
"""

from __future__ import annotations

import ast
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fsdp_migrate.analysis.module import Module


@dataclass(frozen=True, eq=False)
class Code:
    """New source text with holes: ``code("fully_shard({m})", m=node)``.

    A hole is filled by source text, by another ``Code``, or by an old ``ast`` expression, which
    brings its comments, line breaks and its own edits along. Literal braces are doubled.
    """

    template: str
    parts: dict[str, Code | ast.expr | str]

    def flatten(self, nodes: list[ast.expr], hole: str = "__fsdp_migrate_{}__") -> str:
        """Plain text in which old nodes are placeholder names, appended to ``nodes``."""
        pieces: list[str] = []
        for literal, name, _, _ in string.Formatter().parse(self.template):
            pieces.append(literal)
            if name is None:
                continue
            part = self.parts[name]
            if isinstance(part, Code):
                pieces.append(part.flatten(nodes, hole))
            elif isinstance(part, ast.expr):
                pieces.append(hole.format(len(nodes)))
                nodes.append(part)
            else:
                pieces.append(part)
        return "".join(pieces)

    def old_nodes(self) -> list[ast.expr]:
        """The expressions of the file that it takes over."""
        found: list[ast.expr] = []
        self.flatten(found)
        return found

    def preview(self) -> str:
        """The text on one line, old nodes shown as Python would print them (for reports)."""
        nodes: list[ast.expr] = []
        text = self.flatten(nodes)
        for index, node in enumerate(nodes):
            text = text.replace(f"__fsdp_migrate_{index}__", ast.unparse(node))
        return " ".join(text.split())


@dataclass(frozen=True, eq=False)
class Named(Code):
    """A value without side effects that gets this name where a function would write it twice for
    one purpose."""

    name: str
    purpose: str


def code(template: str, **parts: Code | ast.expr | str) -> Code:
    return Code(template, parts)


def join(separator: str, items: list[Code]) -> Code:
    """``a, b, c`` from the given pieces."""
    names = [f"p{index}" for index in range(len(items))]
    template = separator.join(f"{{{name}}}" for name in names)
    return Code(template, dict(zip(names, items, strict=True)))


# -- edits --------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Edit:
    module: Module


@dataclass(frozen=True, eq=False)
class ReplaceExpression(Edit):
    node: ast.expr
    code: Code


@dataclass(frozen=True, eq=False)
class ReplaceStatement(Edit):
    """``codes`` are whole statements; none deletes the statement."""

    node: ast.stmt
    codes: tuple[Code, ...]


@dataclass(frozen=True, eq=False)
class Insert(Edit):
    node: ast.stmt
    codes: tuple[Code, ...]
    after: bool = False


@dataclass(frozen=True, eq=False)
class Unwrap(Edit):
    """Remove context managers from a ``with``; the body is dedented when none is left."""

    node: ast.With | ast.AsyncWith
    items: tuple[int, ...]
    before: tuple[Code, ...] = ()


@dataclass(frozen=True, eq=False)
class DropBranch(Edit):
    """Remove one part of an ``if`` chain; another part follows it or stands before it."""

    node: ast.If


@dataclass(frozen=True, eq=False)
class DropElse(Edit):
    """Remove all of an ``if`` chain that follows its first part."""

    node: ast.If


@dataclass(frozen=True, eq=False)
class RemoveArgument(Edit):
    call: ast.Call
    argument: ast.expr | ast.keyword


@dataclass(frozen=True, eq=False)
class RemoveItem(Edit):
    """``"key": value`` goes out of a dictionary that is written out."""

    node: ast.Dict
    value: ast.expr


@dataclass(frozen=True, eq=False)
class AddItem(Edit):
    """``"key": value`` goes to the end of a dictionary that is written out."""

    node: ast.Dict
    key: str
    code: Code


@dataclass(frozen=True, eq=False)
class RenameKeyword(Edit):
    keyword: ast.keyword
    call: ast.Call
    name: str


@dataclass(frozen=True, eq=False)
class RenameParameter(Edit):
    """A parameter has another name where its function is defined."""

    parameter: ast.arg
    name: str


@dataclass(frozen=True, eq=False)
class AddKeyword(Edit):
    call: ast.Call
    name: str
    code: Code


@dataclass(frozen=True, eq=False)
class RemoveImport(Edit):
    """Drop one name of an import statement that nothing uses."""

    alias: ast.alias


@dataclass(frozen=True, eq=False)
class MoveStatement(Edit):
    node: ast.stmt
    after: ast.stmt


@dataclass(frozen=True, eq=False)
class Mark(Edit):
    """The marker: a comment line above the statement that holds ``node``.

    ``name`` and ``together``: where a file has many names of which the same is to be said, the
    first marker says it of all of them, ``{names}``, and the others are not written; so it is with
    two at one statement. ``once``: it is about a setting of the program, said once in a file.
    ``stays``: ``node`` is not touched, and the marker stands above the line that has it.
    """

    node: ast.AST
    code: str
    sentence: str
    name: str = ""
    together: str = ""
    once: bool = False
    stays: bool = False

    @property
    def comment(self) -> str:
        return f"# TODO(fsdp-migrate {self.code}): {self.sentence}"


@dataclass(frozen=True, eq=False)
class Import(Edit):
    """``from source import name as asname``; an empty ``name`` means ``import source``."""

    source: str
    name: str
    asname: str
    near: ast.AST  # the statement whose import block is the right place

    @property
    def local(self) -> str:
        return self.asname or self.name or self.source


@dataclass(frozen=True, eq=False)
class Define(Edit):
    """A function is defined above a statement at the top of a file."""

    ABOVE: ClassVar = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

    node: ast.stmt
    code: Code


@dataclass(frozen=True, eq=False)
class Support(Edit):
    """A function of the support module is needed here under the name ``local``."""

    function: str
    local: str
    near: ast.AST
    lacking: frozenset[str] = frozenset()  # what it need not answer for: names of the library


def new_code(edit: Edit) -> Sequence[Code]:
    """The code that an edit writes."""
    match edit:
        case ReplaceExpression() | AddKeyword() | AddItem() | Define():
            return (edit.code,)
        case ReplaceStatement() | Insert():
            return edit.codes
        case Unwrap():
            return edit.before
    return ()


def carried(edits: Iterable[Edit]) -> set[ast.AST]:
    """The old expressions that edits write down again, with whatever stands in them."""
    return {node for edit in edits for code in new_code(edit) for node in code.old_nodes()}
