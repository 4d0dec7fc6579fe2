"""Comments and markers around statements that are replaced, removed or moved.

A statement that is removed may have comments above it that are about what follows. LibCST keeps
comments in the statement below them, so a *placeholder* takes the removed statement's place, holds
its comments, and goes when the block is done and its comments are handed to the next statement.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from typing import TypeVar

import libcst as cst

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.edits import Mark
from fsdp_migrate.rewriting.layout import Line, is_for_tools
from fsdp_migrate.syntax import suppressions
from fsdp_migrate.syntax.kinds import of_kind, present

Block = TypeVar("Block", cst.Module, cst.IndentedBlock)
Statement = TypeVar("Statement", bound=cst.BaseStatement)

NARROWEST = 60  # columns that a marker may have, however deep it stands
_PLACEHOLDER = "__fsdp_migrate_gone__"


def placeholder(leading: Sequence[cst.EmptyLine] = ()) -> cst.SimpleStatementLine:
    """A line that holds comments and will not be written itself."""
    return cst.SimpleStatementLine([cst.Expr(cst.Name(_PLACEHOLDER))], leading_lines=leading)


def leave(leading: Sequence[cst.EmptyLine], *, about_it: bool = True) -> list[Line]:
    """What a removed statement leaves behind for the next statement: comments above it, or the
    empty lines that part its paragraph from the one before.

    With ``about_it``, a comment right above the statement was about it and goes with it.
    """
    kept = list(leading)
    while about_it and kept and kept[-1].comment is not None:
        kept.pop()
    return [placeholder(kept)] if kept else []


def head_paragraph(leading: Sequence[cst.EmptyLine]) -> bool:
    """Whether comments stand below an empty line: they may be about all that follows."""
    below = from_first_comment(leading)
    return len(leading) > len(below) > 0 and all(line.comment is not None for line in below)


def hand_down(block: Block) -> Block:
    """Give what removed statements left behind to the statements that follow them."""
    body: list[cst.BaseStatement] = []
    waiting: list[cst.EmptyLine] = []
    for statement in block.body:
        if _is_placeholder(statement):
            waiting = _together(waiting, leading_lines(statement))
        elif waiting:
            needed = _has_comments(waiting) or not _begins_apart(leading_lines(statement))
            body.append(put_above(waiting, statement) if needed else statement)
            waiting = []
        else:
            body.append(statement)
    if len(body) == len(block.body) and not waiting:
        return block
    footer = [*(waiting if _has_comments(waiting) else ()), *block.footer]
    return block.with_changes(body=body, footer=footer)


def _together(waiting: list[cst.EmptyLine], left: Sequence[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """What two removed statements left behind: comments of both, but empty lines of one."""
    if not _has_comments(waiting):
        return list(left) if _begins_apart(left) else [*waiting, *left]
    return [*waiting, *left] if _has_comments(left) else waiting


def _has_comments(leading: Iterable[cst.EmptyLine]) -> bool:
    return any(line.comment is not None for line in leading)


def _begins_apart(leading: Sequence[cst.EmptyLine]) -> bool:
    """Whether an empty line parts a statement, or its comments, from the statement before."""
    return bool(leading) and leading[0].comment is None


def _is_placeholder(statement: cst.CSTNode) -> bool:
    match statement:
        case cst.SimpleStatementLine(body=[cst.Expr(value=cst.Name(value=name)), *_]):
            return name == _PLACEHOLDER
    return False


def leading_lines(line: cst.CSTNode) -> Sequence[cst.EmptyLine]:
    """The blank lines and comments above a statement."""
    found: Sequence[cst.EmptyLine] = getattr(line, "leading_lines", ())
    return found


def put_above(leading: Iterable[cst.EmptyLine], line: Statement) -> Statement:
    """``line`` with more blank lines and comments above it, and its markers above those."""
    return line.with_changes(leading_lines=_markers_first(list(leading), leading_lines(line)))


def _markers_first(above: list[cst.EmptyLine], own: Sequence[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """The lines above a statement: a marker stands over the comments that belong to it."""
    markers = list(takewhile(_is_of_marker, own))
    belonging = list(takewhile(lambda line: line.comment is not None, reversed(above)))
    first = len(above) - len(belonging)
    return [*above[:first], *markers, *above[first:], *own[len(markers) :]]


def _is_of_marker(line: cst.EmptyLine) -> bool:
    begins = (f"# {suppressions.MARKER}", suppressions.CONTINUED)
    return line.comment is not None and line.comment.value.startswith(begins)


def from_first_comment(leading: Iterable[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """Leading lines without the blank ones at their beginning."""
    return list(dropwhile(lambda line: line.comment is None, leading))


def own_lines(texts: Iterable[str]) -> list[cst.EmptyLine]:
    """Comments, each on a line of its own."""
    return [cst.EmptyLine(comment=cst.Comment(text)) for text in texts]


def line_of(mark: Mark, lines: Sequence[Line]) -> int:
    """Above which of the lines in place of a statement its marker stands: the next run looks for it
    where what stays is."""
    if len(lines) == 1 or not mark.stays or not isinstance(mark.node, ast.expr | ast.stmt):
        return 0
    text = "".join(mark.module.source.segment(mark.node).split())
    whole = re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")
    return next((n for n, line in enumerate(lines) if whole.search(_tight(line))), 0)


def _tight(line: Line) -> str:
    """The code of a line without its spaces."""
    return "".join(cst.Module([line]).code.split())


def add_markers(
    line: Line, marks: Sequence[Mark], existing: Sequence[cst.EmptyLine] = (), *, width: int
) -> Line:
    """``line`` with its markers above it, no longer than ``width``.

    One of the same rule that is there already counts.
    """
    leading = leading_lines(line)
    present = {
        above.comment.value.partition(":")[0]
        for above in (*leading, *existing)
        if above.comment is not None
    }
    new = dict.fromkeys(m.comment for m in marks if m.comment.partition(":")[0] not in present)
    wrapped = [part for comment in new for part in _wrapped(comment, width)]
    return line.with_changes(leading_lines=_over_comments(leading, own_lines(wrapped)))


def _over_comments(
    leading: Sequence[cst.EmptyLine], markers: Sequence[cst.EmptyLine]
) -> list[cst.EmptyLine]:
    """The lines above a statement with more markers: over its own comments, below others."""
    own = list(
        takewhile(lambda e: e.comment is not None and not _is_of_marker(e), reversed(leading))
    )
    first = len(leading) - len(own)
    return [*leading[:first], *markers, *leading[first:]]


def _wrapped(marker: str, width: int) -> list[str]:
    """A marker as comment lines; those after the first are indented, as for any long TODO."""
    return textwrap.wrap(
        marker,
        max(width, NARROWEST),
        subsequent_indent=suppressions.CONTINUED,
        break_long_words=False,
        break_on_hyphens=False,
    )


def hand_over(old: cst.SimpleStatementLine, lines: list[Line]) -> list[Line]:
    """The lines that replace an old one, with the comments above it and behind it."""
    present = {e.comment.value for e in old.leading_lines if e.comment is not None}
    fresh = [
        e for e in leading_lines(lines[0]) if e.comment is None or e.comment.value not in present
    ]
    above = _markers_first(list(old.leading_lines), fresh)
    last, behind = lines[-1], old.trailing_whitespace.comment
    if isinstance(last, cst.SimpleStatementLine):
        lines[-1] = last.with_changes(trailing_whitespace=old.trailing_whitespace)
    elif behind is not None and not (is_for_tools(behind) or _says(last, behind)):
        above = [*above, *own_lines([behind.value])]
    lines[0] = lines[0].with_changes(leading_lines=above)
    return lines


# Arguments of FSDP1's constructor that nothing stands for in the new code.
_NOTHING = frozenset({"backward_prefetch", "forward_prefetch", "limit_all_gathers"})
_NOTHING |= {"use_orig_params"}


def without_false(
    old: cst.SimpleStatementLine, nodes: Sequence[ast.AST], lines: list[Line]
) -> list[Line]:
    """The lines that stand in place of an old one, without a comment of one line above it that is
    about an argument which none of them has: ``# use_orig_params=True, to compile``."""
    comment = old.leading_lines[-1].comment if old.leading_lines else None
    if comment is None or not lines or _is_of_marker(old.leading_lines[-1]):
        return lines
    alone = len(old.leading_lines) == 1 or old.leading_lines[-2].comment is None
    calls = [n for node in nodes for n in ast.walk(node) if isinstance(n, ast.Call)]
    given = {keyword.arg for call in calls for keyword in call.keywords}
    named = given & _NOTHING & set(re.findall(r"\w+", comment.value))
    if not named or not alone:
        return lines
    bare = [line.with_changes(leading_lines=()) for line in lines]
    if any(name in cst.Module(bare).code for name in named if name):
        return lines
    above = [
        e for e in leading_lines(lines[0]) if e.comment is None or e.comment.value != comment.value
    ]
    return [lines[0].with_changes(leading_lines=above), *lines[1:]]


def _says(statement: Line, comment: cst.Comment) -> bool:
    """Whether a comment stands somewhere in a statement, behind the line that it was behind."""
    return comment.value in cst.Module([statement]).code


@dataclass(frozen=True)
class Kept:
    """A comment of a replaced statement that still says something.

    With a ``keyword``, it stood behind an argument; the new one has this name. ``lone``: without
    the argument beside it, it says nothing.
    """

    text: str
    keyword: str = ""
    lone: bool = False


def of_kept_arguments(module: Module, node: ast.AST, kept: Collection[ast.AST]) -> list[Kept]:
    """Comments of a replaced statement that belong to arguments whose values live on, or whose
    meaning does under another name.

    ``kept`` are the old nodes that new code mentions. What stands inside of one travels with it.
    """
    start, end = getattr(node, "lineno", 1), getattr(node, "end_lineno", 1)
    if start == end:
        return []
    owners = [n for n in ast.walk(node) if isinstance(n, (ast.keyword, ast.expr))]
    inside = [n for n in kept if start <= getattr(n, "lineno", 0) <= end]
    found = []
    for line, column, text in module.source.comments(start, end):
        if any(_spans(n, line, column) for n in inside) or _is_argument(text):
            continue
        owner = _owner(owners, line, column)
        name = (owner.arg or "") if isinstance(owner, ast.keyword) else ""
        behind = owner is not None and owner.end_lineno == line
        lives = owner is not None and any(n in kept for n in ast.walk(owner))
        if lives or _is_translated(owner):
            keyword = NEW_NAMES.get(name, name) if behind else ""
            found.append(Kept(text, keyword, lone=behind and not lives))
    return found


def _is_argument(comment: str) -> bool:
    """Whether a comment is an argument of FSDP1's constructor, which somebody switched off."""
    try:
        call = ast.parse(f"f({comment.lstrip('# ')}\n)", mode="eval").body
    except SyntaxError:
        return False
    given = call.keywords if isinstance(call, ast.Call) and not call.args else []
    return bool(given) and all(each.arg in fsdp1.CONSTRUCTOR_ARGUMENTS for each in given)


def of_replaced_calls(
    module: Module, replaced: Sequence[ast.AST], kept: Collection[ast.AST]
) -> list[Kept]:
    """Likewise the comments in calls of one line that other calls take the place of."""
    calls = [n for n in replaced if isinstance(n, ast.Call) and n.lineno != n.end_lineno]
    found = [n for n in calls if not hasattr(module.table.statement(n), "body")]
    outermost = [n for n in found if not any(a in found for a in module.table.ancestors(n))]
    return [comment for n in outermost for comment in of_kept_arguments(module, n, kept)]


# Arguments of FSDP1's constructor that say something of the new code too, and their new names.
NEW_NAMES = {
    "cpu_offload": "offload_policy",
    "device_mesh": "mesh",
    "mixed_precision": "mp_policy",
    "process_group": "mesh",
    "sharding_strategy": "reshard_after_forward",
    "sync_module_states": "",
    "param_init_fn": "",
}
_NO_OFFLOAD = ("CPUOffload()", "CPUOffload(False)", "CPUOffload(offload_params=False)")


def _is_translated(owner: ast.AST | None) -> bool:
    if not isinstance(owner, ast.keyword) or owner.arg not in NEW_NAMES:
        return False
    value = ast.unparse(owner.value)
    return value not in {"None", "False"} and not value.endswith(_NO_OFFLOAD)


def put_beside(kept: Sequence[Kept], lines: list[Line], module: cst.Module, width: int) -> None:
    """Write comments behind the arguments that they were written behind, where those have a line
    of their own; others stand above the first line."""
    above = []
    for comment in kept:
        editor = _Beside(comment, module, width)
        for number, line in enumerate(lines if comment.keyword else ()):
            visited = line.visit(editor)
            if isinstance(visited, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
                lines[number] = visited
            if editor.done:
                break
        if not editor.done and not comment.lone:
            above.append(comment.text)
    lines[0] = put_above(own_lines(above), lines[0])


class _Beside(cst.CSTTransformer):
    """Writes a comment behind the first argument of a name that ends its line."""

    def __init__(self, comment: Kept, module: cst.Module, width: int) -> None:
        super().__init__()
        self.comment, self.module, self.width = comment, module, width
        self.done = False

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        name, comma = updated_node.keyword, updated_node.comma
        if self.done or name is None or name.value != self.comment.keyword:
            return updated_node
        if not isinstance(comma, cst.Comma):
            return updated_node
        space = comma.whitespace_after
        if not isinstance(space, cst.ParenthesizedWhitespace) or space.first_line.comment:
            return updated_node
        unit = self.module.default_indent.expandtabs(4)
        bare = updated_node.with_changes(comma=cst.MaybeSentinel.DEFAULT)
        code = self.module.code_for_node(bare)
        if "\n" in code or len(f"{unit}{code},  {self.comment.text}") > self.width:
            return updated_node
        self.done = True
        end = space.first_line.with_changes(
            whitespace=cst.SimpleWhitespace("  "), comment=cst.Comment(self.comment.text)
        )
        return updated_node.with_changes(
            comma=comma.with_changes(whitespace_after=space.with_changes(first_line=end))
        )


def _spans(node: ast.AST, line: int, column: int) -> bool:
    """Whether a position lies within a node."""
    node = of_kind(node, ast.expr)
    start = (node.lineno, node.col_offset)
    return start <= (line, column) < (present(node.end_lineno), present(node.end_col_offset))


def _owner(
    nodes: Sequence[ast.keyword | ast.expr], line: int, column: int
) -> ast.keyword | ast.expr | None:
    """What a comment is about: what ends before it on its line, else what follows it."""
    before = [n for n in nodes if n.end_lineno == line and (n.end_col_offset or 0) <= column]
    if before:
        return min(before, key=lambda n: n.col_offset)
    after = [n for n in nodes if n.lineno > line]
    return min(after, key=lambda n: (n.lineno, n.col_offset), default=None)
