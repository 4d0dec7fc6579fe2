"""Comments of ours that stand in code: what is to stay, what is not to be reported, and markers
that wait for a human.

``# fsdp-migrate: leave[FSDP104, FSDP3] reason`` counts for the *logical line* it stands on: a
statement, or the head of a ``with``, ``if``, ``def`` and so on, over however many physical lines.
On the first or last of these it counts for all of it, on another for what begins or ends there.
Alone on a line it counts for the next one. ``leave-file`` stands above the first statement.
``ignore`` and ``ignore-file`` likewise, for what is not to be reported.
"""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from fsdp_migrate.syntax.name_table import NameTable
    from fsdp_migrate.syntax.source import Source

IGNORE = "fsdp-migrate:"  # no file without it has anything to ignore
MARKER = "TODO(fsdp-migrate"
CONTINUED = "#     "  # how a marker goes on, on the lines below its first
UNUSED = "FSDP990"

_IGNORE = re.compile(
    r"(?:^|(?<=\s))#\s*fsdp-migrate:\s*(?P<word>ignore|leave)(?P<file>-file)?(?![\w-])"
)
_CODES = re.compile(r"\s*\[([^\]]*)\]")
_CODE = re.compile(r"FSDP\d{0,3}")
_NEXT_COMMENT = re.compile(r"\s#(?!\d)")
_MARKER = re.compile(r"#\s*TODO\(fsdp-migrate (FSDP\d{3})\):\s*(.*)")
_NO_CODE = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
        tokenize.ENCODING,
    }
)


@dataclass(frozen=True)
class Ignore:
    """A comment that says what is to stay as it is, if it ``leaves`` that, or else what is not to
    be reported. Lines and columns are 1-based.

    Without ``codes`` it counts for every rule. ``target`` is the line it speaks of, 0 for the whole
    file. One with a ``flaw`` counts for nothing.
    """

    line: int
    column: int
    text: str
    codes: tuple[str, ...] = ()
    reason: str = ""
    target: int = 0
    flaw: str = ""
    leaves: bool = True

    def match(self, *codes: str) -> str | None:
        """The code of this comment that one of ``codes`` begins with; None if there is none."""
        if self.flaw:
            return None
        if not self.codes:
            return ""
        return next((own for own in self.codes if any(c.startswith(own) for c in codes)), None)


@dataclass(frozen=True)
class Ignored:
    """Why a site stays or is not reported: the comment, and that code of it that counted. What the
    configuration says has no line, and its name in the place of a path."""

    ignore: Ignore
    path: str
    code: str

    @property
    def place(self) -> str:
        return f"{self.path}:{self.ignore.line}" if self.ignore.line else self.path


@dataclass(frozen=True)
class Marker:
    """A marker that stands in code, its last line, and the line of code below it, 0 without one."""

    line: int
    column: int
    text: str
    code: str
    sentence: str
    target: int
    end_line: int


@dataclass(frozen=True)
class Remarks:
    """What one file says to us."""

    ignores: tuple[Ignore, ...] = ()
    markers: tuple[Marker, ...] = ()
    first_lines: tuple[int, ...] = ()  # of the logical lines
    last_lines: tuple[int, ...] = ()

    def logical_line(self, line: int) -> tuple[int, int]:
        """The first and last physical line of the logical line that ``line`` belongs to."""
        index = bisect_right(self.first_lines, line) - 1
        if index < 0 or line > self.last_lines[index]:
            return line, line
        return self.first_lines[index], self.last_lines[index]


NOTHING = Remarks()
_READ: WeakKeyDictionary[Source, Remarks] = WeakKeyDictionary()


def of(source: Source) -> Remarks:
    """What a source says to us; only a file that mentions us is read as tokens."""
    known = _READ.get(source)
    if known is None:
        mentioned = IGNORE in source.text or MARKER in source.text
        known = _READ[source] = read("\n".join(source.lines)) if mentioned else NOTHING
    return known


def find(
    node: ast.AST, source: Source, table: NameTable, *codes: str, leaves: bool = True
) -> Ignored | None:
    """The comment by which ``node`` stays whatever any of these rules says of it, or, without
    ``leaves``, by which that is not reported; the nearest, if there are several."""
    said = of(source)
    if not said.ignores:
        return None
    lines = _lines(node, table, said)
    for ignore in sorted(said.ignores, key=lambda i: not i.target):
        if ignore.leaves is leaves and (not ignore.target or ignore.target in lines):
            code = ignore.match(*codes)
            if code is not None:
                return Ignored(ignore, source.display, code)
    return None


def _lines(node: ast.AST, table: NameTable, said: Remarks) -> set[int]:
    """The lines on which a comment counts for ``node``."""
    first, last = said.logical_line(getattr(node, "lineno", 1))
    found = {first, last}
    for each in (node, *table.ancestors(node)):
        if isinstance(each, ast.stmt):
            break
        found |= {getattr(each, "lineno", first), getattr(each, "end_lineno", None) or first}
    return {line for line in found if first <= line <= last}


def read(text: str) -> Remarks:
    """What the text of a Python file says to us; line ends must be newlines.

    Raises:
        tokenize.TokenError, SyntaxError: it is not Python.
    """
    comments: list[tokenize.TokenInfo] = []
    alone: set[int] = set()  # lines with a comment and nothing else
    code: list[int] = []  # lines on which a token begins
    logical: list[tuple[int, int, bool]] = []  # first line, last line, nothing but strings
    begun, strings = 0, True
    # Of a file that ends in a backslash, the tokenizer wants one more line.
    for token in tokenize.generate_tokens(io.StringIO(f"{text}\n").readline):
        row = token.start[0]
        if token.type == tokenize.COMMENT:
            comments.append(token)
            if not (code and code[-1] == row):
                alone.add(row)
        elif token.type == tokenize.NEWLINE:
            logical.append((begun or row, row, strings))
            begun, strings = 0, True
        elif token.type not in _NO_CODE:
            begun = begun or row
            strings = strings and token.type == tokenize.STRING
            code += (row, token.end[0])
    head = next((first for n, (first, _, s) in enumerate(logical) if n or not s), None)
    found = [(token.start[0], token.start[1] + 1, token.string) for token in comments]
    said = of_comments(found, alone, sorted(set(code)), head)
    return replace(
        said,
        first_lines=tuple(first for first, _, _ in logical),
        last_lines=tuple(last for _, last, _ in logical),
    )


def of_comments(
    comments: Sequence[tuple[int, int, str]],
    alone: Collection[int],
    lines: Sequence[int],
    head: int | None,
) -> Remarks:
    """What comments say to us, in any language that begins them with ``#``.

    Each has its line, its column and its text; those ``alone`` have nothing else on their line.
    ``lines`` have something that is none, in order; ``head`` is the first of them that counts.
    """

    def target(row: int) -> int:
        """The line a comment speaks of."""
        if row not in alone:
            return row
        index = bisect_right(lines, row)
        following = lines[index] if index < len(lines) else 0
        return following if all(r in alone for r in range(row, following)) else 0

    ignores: list[Ignore] = []
    markers: list[Marker] = []
    for row, column, text in comments:
        for ignore in _ignores(text):
            placed = replace(ignore, line=row, column=column + ignore.column)
            if ignore.target < 0:  # for the file
                at_top = row in alone and (head is None or row < head)
                flaw = ignore.flaw or ("" if at_top else "it must stand above the first statement")
                placed = replace(placed, target=0, flaw=flaw)
            elif not target(row):
                flaw = ignore.flaw or "it stands above no line of code"
                placed = replace(placed, target=row, flaw=flaw)
            else:
                placed = replace(placed, target=target(row))
            ignores.append(placed)
        marker = _MARKER.match(text)
        if marker is not None:
            parts = [marker[2], *_continued(row, {line: said for line, _, said in comments})]
            sentence = " ".join(part.strip() for part in parts)
            last = row + len(parts) - 1
            markers.append(Marker(row, column, text, marker[1], sentence, target(row), last))
    return Remarks(tuple(ignores), tuple(markers))


def _continued(row: int, comments: Mapping[int, str]) -> Iterator[str]:
    """What the lines below a marker's first add to it."""
    for following in itertools.count(row + 1):
        comment = comments.get(following, "")
        if not comment.startswith(CONTINUED):
            return
        yield comment.removeprefix("#")


def _ignores(comment: str) -> Iterator[Ignore]:
    """The comments of ours in one comment, which linters may share; a target of -1 is the file.

    The column is the offset in the comment.
    """
    for found in _IGNORE.finditer(comment):
        rest = comment[found.end() :]
        following = _NEXT_COMMENT.search(rest)
        rest = rest[: following.start()] if following is not None else rest
        text = f"{found[0]}{rest}".rstrip()
        listed = _CODES.match(rest)
        codes: tuple[str, ...] = ()
        flaw = ""
        if listed is not None:
            rest = rest[listed.end() :]
            codes = tuple(dict.fromkeys(c.strip().upper() for c in listed[1].split(",")))
            wrong = next((c for c in codes if _CODE.fullmatch(c) is None), None)
            flaw = f"{wrong!r} is not the code of a rule" if wrong is not None else ""
        elif rest.lstrip().startswith("["):
            flaw = "its list of codes has no end"
        reason = rest.strip(" \t:,-\u2013\u2014")
        target = -1 if found["file"] else 0
        leaves = found["word"] == "leave"
        yield Ignore(0, found.start(), text, codes, reason, target, flaw, leaves)
