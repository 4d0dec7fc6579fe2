"""A notebook as Python sources, and new text of a source told apart into cells again.

The cells of a notebook become one source, in their order, each behind a statement that stands for
its beginning. A ``%%writefile train.py`` cell is a source of its own.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath

from fsdp_migrate.syntax.magics import (
    MAGIC,
    NAME,
    TRANSPARENT,
    Mask,
    SplitError,
    line_end,
    mask_commands,
    parses,
)
from fsdp_migrate.syntax.notebook import Cell, Notebook, NotebookError

WRITING = frozenset({"writefile", "file"})
# Those that run something else, which knows none of the notebook's names.
APART = WRITING | frozenset(
    (
        *("bash", "cmd", "html", "javascript", "js", "latex", "markdown", "perl", "pypy", "python"),
        *("python2", "python3", "R", "ruby", "script", "sh", "sql", "svg", "sx", "system"),
    )
)


@dataclass(frozen=True, eq=False)
class Piece:
    """A cell as part of a source, from ``line`` on; ``head`` is what stands above it in the cell,
    ``name`` the statement that stands for its beginning, if one does."""

    cell: Cell
    line: int
    head: str = ""
    name: str = ""
    masks: tuple[Mask, ...] = ()
    code: str = field(default="", repr=False)


@dataclass(frozen=True, eq=False)
class Excerpt:
    """How a source was taken from a notebook."""

    notebook: Notebook
    pieces: tuple[Piece, ...]
    text: str = field(repr=False)

    @cached_property
    def masks(self) -> dict[str, Mask]:
        return {mask.name: mask for piece in self.pieces for mask in piece.masks}

    def piece(self, line: int) -> Piece:
        """The cell that a line of the source is in."""
        found = self.pieces[0]
        for piece in self.pieces:
            if piece.line - bool(piece.name) <= line:
                found = piece
        return found

    def place(self, line: int, column: int = 1) -> tuple[int, int, int]:
        """Cell, line and column in the notebook of a place in the source."""
        piece = self.piece(line)
        inside = max(1, line - piece.line + 1)
        text = self.text.split("\n")[line - 1]
        for mask in piece.masks:
            if mask.code and text.endswith(f"# {mask.name}"):
                column += len(mask.text) - len(mask.code)
        return piece.cell.number, inside + piece.head.count("\n"), column

    def shown(self, line: int) -> str:
        """A line of the source as it stands in the notebook."""
        piece = self.piece(line)
        lines = piece.cell.code.split("\n")
        index = self.place(line)[1] - 1
        return lines[index] if index < len(lines) else ""

    def file_line(self, line: int) -> int:
        piece = self.piece(line)
        return self.notebook.line(piece.cell, self.place(line)[1])

    def split(self, new: str) -> dict[Cell, str]:
        """New text of the source, told apart into the cells it came from.

        Raises:
            SplitError: the beginnings of the cells are not there as they were.
        """
        found: dict[Cell, str] = {}
        starts = []
        at = 0
        for piece in self.pieces:
            if piece.name:
                line = re.compile(rf"(?m)^{piece.name}$").search(new, at)
                if line is None or new.count(piece.name) != 1:
                    raise SplitError("an edit would move code between cells")
                if piece is self.pieces[0] and line.start():
                    raise SplitError("an edit would put code in front of the first cell")
                at = line.end()
            starts.append((at - len(piece.name), min(len(new), at + bool(piece.name))))
        ends = [begin - 1 for begin, _ in starts[1:]]
        last = len(new) - (1 if self.pieces[-1].name and new.endswith("\n") else 0)
        for piece, (_, start), end in zip(self.pieces, starts, [*ends, last], strict=True):
            found[piece.cell] = piece.head + _restored(piece, new[start : max(start, end)])
        return found

    def moved(self, new: str) -> Excerpt:
        """The same cells in new text, which still has their beginnings."""
        lines = {line: number for number, line in enumerate(new.split("\n"), 1)}
        pieces = [replace(p, line=lines[p.name] + 1 if p.name else p.line) for p in self.pieces]
        return Excerpt(self.notebook, tuple(pieces), new)

    def compiled_parts(self, new: str) -> Iterator[str]:
        """What Python compiles by itself: each cell of its own."""
        names = [piece.name for piece in self.pieces if piece.name]
        if not names:
            yield new
            return
        pattern = rf"(?m)^(?:{'|'.join(names)})$\n?"
        yield from re.split(pattern, new)[1:]

    def lines_of(self, masks: Iterable[Mask]) -> list[int]:
        """The lines of the source that masks stand on."""
        names = [mask.name for mask in masks]
        lines = self.text.split("\n")
        return [n for n, text in enumerate(lines, 1) if any(name in text for name in names)]


def _restored(piece: Piece, new: str) -> str:
    """The new text of a cell, with what was masked, and without blank lines that edits left at its
    ends."""
    if any(mask.whole for mask in piece.masks):
        return piece.cell.code.removeprefix(piece.head)
    if new == piece.code:
        return piece.cell.code.removeprefix(piece.head)
    at = 0
    for mask in piece.masks:
        new, at = mask.restore(new, at)
    if piece.name:
        if not piece.code.startswith("\n"):
            new = new.lstrip("\n")
        if not piece.code.endswith("\n"):
            new = new.rstrip("\n")
    elif not piece.code.endswith("\n"):
        new = new.removesuffix("\n")
    return new


@dataclass(frozen=True)
class Extract:
    """One source of a notebook: a path to know it by, its text, and where that is from."""

    path: Path
    text: str
    excerpt: Excerpt


def extracts(data: bytes, path: Path, taken: Iterable[Path] = ()) -> list[Extract]:
    """The sources of a notebook: its own cells, and the files that cells of it write.

    ``taken`` are paths that such a file does not get.

    Raises:
        NotebookError: it cannot be read, or a cell is not Python.
    """
    notebook = Notebook.read(data, path)
    found: list[Extract] = []
    pieces: list[Piece] = []
    lines: list[str] = []
    used = {path, *taken}
    line = 1

    def names(cell: Cell) -> Iterator[str]:
        number = 0
        while True:
            yield NAME.format(f"masked_{cell.number}", number)
            number += 1

    for cell in notebook.cells:
        magic = MAGIC.match(cell.code)
        given = names(cell)
        if magic is not None and magic.group(1) in WRITING:
            written = _written(cell, magic, path, used)
            if written is not None:
                found.append(Extract(written, *_file(notebook, cell, magic)))
                used.add(written)
                continue
        if magic is not None and magic.group(1) not in TRANSPARENT:
            code_ = next(given)
            apart = magic.group(1) in APART
            masks = [Mask(code_, cell.code, whole=True, shares_names=not apart)]
        else:
            code_, masks = mask_commands(cell.code, given)
            _check(code_, cell)
        name = NAME.format("cell", cell.number)
        pieces.append(Piece(cell, line + 1, "", name, tuple(masks), code_))
        lines += [name, code_]
        line += 2 + code_.count("\n")
    if pieces:
        text = "\n".join([*lines, ""])
        found.insert(0, Extract(path, text, Excerpt(notebook, tuple(pieces), text)))
    return found


def _check(text: str, cell: Cell) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        line = error.lineno or 1
        raise NotebookError(f"does not parse: {error.msg}", line, cell.number) from None
    except (ValueError, RecursionError, MemoryError) as error:
        message = f"does not parse: {error or type(error).__name__}"
        raise NotebookError(message, 0, cell.number) from None


def _written(cell: Cell, magic: re.Match[str], path: Path, used: set[Path]) -> Path | None:
    """Where the file of a ``%%writefile`` cell would be, if it is a whole file of Python beside
    the notebook and can be read as one."""
    name = magic.group(2).strip().strip("\"'")
    pure = PurePosixPath(name)
    if pure.suffix != ".py" or re.search(r"[\s{}$~*\\]", name) or pure.is_absolute():
        return None
    if ".." in pure.parts or not parses(cell.code[magic.end() :]):
        return None
    target = path.parent / pure
    if not target.parent.is_dir() and len(pure.parts) > 1:
        return None
    if target in used or target.exists():  # what is there has its own say
        return path.parent / f"{path.name} cell {cell.number} {pure.name}"
    return target


def _file(notebook: Notebook, cell: Cell, magic: re.Match[str]) -> tuple[str, Excerpt]:
    head = cell.code[: line_end(cell.code, magic.end())]
    text = cell.code[len(head) :]
    return text, Excerpt(notebook, (Piece(cell, 1, head, "", (), text),), text)
