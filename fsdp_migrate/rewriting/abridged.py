"""The abridged text of a file, which LibCST reads: what is edited, and what stands around it.

LibCST is by far the dearest step, and its cost grows with the text. So a run of statements without
an edit is left out: one line with a name, such as ``__fsdp_migrate_kept_3__``, stands for it, and
becomes the statements again in the new text. Lines between statements (comments, blank ones) always
stay, because edits may move them.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.edits import (
    DropBranch,
    DropElse,
    Edit,
    MoveStatement,
    ReplaceStatement,
    Unwrap,
)
from fsdp_migrate.syntax.kinds import present

FEWEST = 4  # lines of a run that are worth leaving out
NAME = "__fsdp_migrate_kept_{}__"
HELD = re.compile(r"^([ \t]*)__fsdp_migrate_kept_(\d+)__$", re.MULTILINE)
ABOUT = re.compile(r"[ \t]*(#|$)")  # a line without code


@dataclass
class AbridgedText:
    """The text, and what was left out of it. Lines are 1-based."""

    text: str
    runs: list[str] = field(default_factory=list)  # what was left out
    _after: list[int] = field(default_factory=list)  # first line behind each run
    _gone: list[int] = field(default_factory=list)  # how many lines are gone by then

    def line(self, line: int) -> int:
        """Where a line of the file stands in the abridged text."""
        index = bisect_right(self._after, line)
        return line - (self._gone[index - 1] if index else 0)

    def whole(self, text: str) -> str | None:
        """The whole new text for a new abridged text; None if the places of runs are not sure."""
        found = HELD.findall(text)
        if [int(number) for _, number in found] != list(range(len(self.runs))):
            return None
        for (indent, _), run in zip(found, self.runs, strict=True):
            if indent != _indent(run):
                return None  # the statements moved: their lines would have to move along
        return HELD.sub(lambda match: self.runs[int(match[2])], text)


def abridge(
    module: Module, wanted: Iterable[ast.AST], edits: Iterable[Edit]
) -> AbridgedText | None:
    """The text with all that is ``wanted`` in it; None if nothing can be left out."""
    source = module.source
    plain = source.encoding == "utf-8" and not source.data.startswith(b"\xef\xbb\xbf")
    if not plain or "\r" in source.text or "\f" in source.text or HELD.search(source.text):
        return None
    moving = {e.node for e in edits if isinstance(e, _MOVING)}
    runs = list(_UneditedRuns(module, set(wanted), moving).of(source.tree.body))
    if not runs:
        return None
    lines = source.text.split("\n")
    result, kept, at, gone = AbridgedText(""), [], 0, 0
    for first, last in runs:
        kept += lines[at : first - 1]
        kept.append(_indent(lines[first - 1]) + NAME.format(len(result.runs)))
        result.runs.append("\n".join(lines[first - 1 : last]))
        gone += last - first
        result._after.append(last + 1)
        result._gone.append(gone)
        at = last
    result.text = "\n".join([*kept, *lines[at:]])
    left_out = {line for first, last in runs for line in range(first, last + 1)}
    body = source.tree.body
    first_of_all, first_of_rest = _indents(body, lines), _indents(body, lines, left_out)
    # LibCST takes a file's indentation from its first block.
    return result if next(first_of_all, None) == next(first_of_rest, None) else None


_MOVING = (DropBranch, DropElse, MoveStatement, ReplaceStatement, Unwrap)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _indents(
    body: list[ast.stmt], lines: list[str], left_out: set[int] | frozenset[int] = frozenset()
) -> Iterator[str]:
    """How much deeper than its statement each block is indented, but for blocks left out."""
    for statement in body:
        if statement.lineno in left_out:
            continue
        outer = len(_indent(lines[statement.lineno - 1]))
        if isinstance(statement, ast.Match):
            yield _indent(lines[statement.cases[0].pattern.lineno - 1])[outer:]
        for block in _blocks(statement):
            unit = _indent(lines[_first_line(block[0]) - 1])[outer:]
            if unit and _begins_line(block[0], lines):
                yield unit
            yield from _indents(block, lines, left_out)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        listed = getattr(statement, name, None)
        if not isinstance(listed, list) or not listed:
            continue
        if isinstance(listed[0], (ast.ExceptHandler, ast.match_case)):
            yield from (part.body for part in listed)
        else:
            yield listed


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(d.lineno for d in decorators)])


def _begins_line(statement: ast.stmt, lines: list[str]) -> bool:
    line = lines[_first_line(statement) - 1]
    decorated = bool(getattr(statement, "decorator_list", ()))
    return decorated or len(_indent(line)) == statement.col_offset


class _UneditedRuns:
    """Finds what can be left out: statements on lines of their own that hold nothing wanted."""

    def __init__(self, module: Module, wanted: set[ast.AST], moving: set[ast.stmt]) -> None:
        self.lines = module.source.text.split("\n")
        self.moving = moving
        self.touched = set(wanted)
        for node in wanted:
            for parent in module.table.ancestors(node):
                if parent in self.touched:
                    break
                self.touched.add(parent)

    def of(self, body: list[ast.stmt]) -> Iterator[tuple[int, int]]:
        """First and last lines of runs, in order."""
        run: list[ast.stmt] = []
        for index, statement in enumerate(body):
            before = body[index - 1] if index else None
            after = body[index + 1] if index + 1 < len(body) else None
            if statement not in self.touched and self._has_own_lines(statement, before, after):
                run.append(statement)
                continue
            yield from self._lines_of_run(run)
            run = []
            if statement in self.touched and statement not in self.moving:
                yield from self.inside(statement)
        yield from self._lines_of_run(run)

    def inside(self, statement: ast.stmt) -> Iterator[tuple[int, int]]:
        for block in _blocks(statement):
            first = block[0]
            if self.lines[first.lineno - 1].startswith("elif", first.col_offset):
                if first not in self.moving:
                    yield from self.inside(first)
            else:
                yield from self.of(block)

    def _lines_of_run(self, run: list[ast.stmt]) -> Iterator[tuple[int, int]]:
        """The lines of a run. Its last statements stay if LibCST would take comments below them for
        another statement's."""
        kept = list(run)
        while kept and not self._ends_clean(kept[-1]):
            kept.pop()
        if kept:
            first, last = _first_line(kept[0]), kept[-1].end_lineno
            last = present(last)
            if last - first + 1 >= FEWEST:
                yield first, last

    def _has_own_lines(
        self, statement: ast.stmt, before: ast.stmt | None, after: ast.stmt | None
    ) -> bool:
        """Whether no other statement shares the lines of a statement."""
        first, last = _first_line(statement), statement.end_lineno
        last = present(last)
        return (
            _begins_line(statement, self.lines)
            and (before is None or (before.end_lineno or 0) < first)
            and (after is None or last < _first_line(after))
            and not self.lines[last - 1].endswith("\\")
            and not (first > 1 and self.lines[first - 2].endswith("\\"))
        )

    def _ends_clean(self, statement: ast.stmt) -> bool:
        """Whether comments below stand where the statement begins, or there are none."""
        for line in self.lines[present(statement.end_lineno) :]:
            about = ABOUT.match(line)
            if about is None:
                break
            if about[1] and len(_indent(line)) != statement.col_offset:
                return False
        return True
