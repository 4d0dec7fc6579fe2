"""Jupyter notebooks: their code as Python, and new code put back into their JSON.

The cells of a notebook become one source, in their order, each behind a statement that stands for
its beginning. What is not Python (``%matplotlib inline``, ``!pip install``, ``torch?``) is masked
by a name of its own and comes back as it was. A ``%%writefile train.py`` cell is a source of its
own. New code is put back into the text of the JSON where the source of a cell stands, line by line,
so that a rewritten notebook differs in the lines that were rewritten and in no others.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from json.decoder import JSONDecoder
from pathlib import Path, PurePosixPath
from typing import Any

from fsdp_migrate.syntax import spelled

SUFFIX = ".ipynb"
# Cell magics that run the rest of the cell as Python in the notebook's own names.
TRANSPARENT = frozenset(
    (
        *("capture", "debug", "heat", "ipytest", "memit", "memray_flamegraph", "mprun", "prun"),
        *("px", "scalene", "snakeviz", "time", "timeit", "wandb"),
    )
)
WRITING = frozenset({"writefile", "file"})
# Those that run something else, which knows none of the notebook's names.
APART = WRITING | frozenset(
    (
        *("bash", "cmd", "html", "javascript", "js", "latex", "markdown", "perl", "pypy", "python"),
        *("python2", "python3", "R", "ruby", "script", "sh", "sql", "svg", "sx", "system"),
    )
)
NAME = "__fsdp_migrate_{}_{}__"
LANGUAGES = frozenset({"", "python", "python3", "ipython", "ipython3"})

_SPACE = re.compile(r"[ \t\r\n]*")
_COMMAND = re.compile(r"[ \t]*[%!?,;/]")
# Nothing with quotes in it, which might hide a string.
_ASSIGNED = re.compile(r"([ \t]*[A-Za-z_][\w.,\[\] \t]*=[ \t]*)([%!](?!=).*)", re.DOTALL)
_TIMED = re.compile(r"([ \t]*)(%(?:time|timeit(?:[ \t]+-(?:[nrp][ \t]*\d+|[tcqo]))*)[ \t]+)(\S.*)")
_MAGIC = re.compile(r"\s*%%(\w+)(.*)")
_PIECE = re.compile(r"\\n|\\u000[aA]")


class NotebookError(Exception):
    """A notebook cannot be read. ``cell`` and ``line`` are 1-based, 0 for the whole file."""

    def __init__(self, message: str, line: int = 0, cell: int = 0) -> None:
        super().__init__(message)
        self.message, self.line, self.cell = message, line, cell


class SplitError(Exception):
    """New code cannot be told apart into the cells it came from. The message says why."""


# -- the JSON -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Cell:
    """A code cell: its number among all cells, from 1, its text, and where that stands."""

    number: int
    text: str
    start: int  # of the value of "source" in the notebook's text
    end: int

    @cached_property
    def newline(self) -> str:
        """``\\r\\n`` where every line of the cell ends so."""
        ends = self.text.count("\n")
        return "\r\n" if ends and ends == self.text.count("\r\n") else "\n"

    @cached_property
    def code(self) -> str:
        """The text with plain line ends."""
        return self.text.replace("\r\n", "\n") if self.newline == "\r\n" else self.text


@dataclass(frozen=True, eq=False)
class Notebook:
    """A notebook of format 4 as read from disk."""

    path: Path
    text: str = field(repr=False)
    cells: tuple[Cell, ...]

    @classmethod
    def read(cls, data: bytes, path: Path | None = None) -> Notebook:
        """The code cells of a notebook; none when its language is not Python.

        Raises:
            NotebookError: it is not JSON, or not a notebook of format 4.
        """
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise NotebookError(f"cannot be decoded as UTF-8 (line {line})") from None
        try:
            cells = list(_cells(text))
        except json.JSONDecodeError as error:
            raise NotebookError(f"is not JSON: {error.msg} (line {error.lineno})") from None
        except RecursionError:
            raise NotebookError("is not a notebook: it is nested too deeply") from None
        except ValueError as error:  # a number with too many digits
            raise NotebookError(f"is not a notebook: {error}") from None
        return cls(path or Path("<notebook>"), text, tuple(cells))

    def line(self, cell: Cell, line: int) -> int:
        """The line of the file on which a line of a cell stands, as far as that can be said."""
        listed = _listed(self.text, cell)
        start = listed[line - 1][0] if line <= len(listed) else cell.start
        return self.text.count("\n", 0, start) + 1

    def renewed(self, new: Mapping[Cell, str]) -> bytes:
        """The notebook with new text in some of its cells, and every other byte as it was."""
        pieces = []
        done = 0
        for cell in self.cells:
            text = new.get(cell, cell.code).replace("\n", cell.newline)
            if cell not in new or text == cell.text:
                continue
            pieces += [self.text[done : cell.start], _respelled(self.text, cell, text)]
            done = cell.end
        return "".join([*pieces, self.text[done:]]).encode("utf-8")


def _cells(text: str) -> Iterator[Cell]:
    """The code cells in the text of a notebook.

    Raises:
        NotebookError, json.JSONDecodeError: it is none.
    """
    start = _skip(text, 1 if text.startswith("\ufeff") else 0)
    found: list[Cell] = []
    language = ""
    version: object = None
    is_notebook = False
    if text[start : start + 1] != "{":
        raise NotebookError("is not a notebook: there is no JSON object in it")
    end = start
    for key, at, end in _members(text, start):  # noqa: B007  # where the last one ended
        if key == "cells" and text[at] == "[":
            is_notebook = True
            found = list(_code_cells(text, at))
        elif key == "metadata":
            language = _language(_value(text, at)[0])
        elif key == "nbformat":
            version = _value(text, at)[0]
    end = _object_end(text, start) if end == start else _closing(text, end, "}")
    if _skip(text, end) != len(text):
        raise json.JSONDecodeError("Extra data", text, _skip(text, end))
    if version != 4:
        known = isinstance(version, int)
        message = f"is a notebook of format {version}" if known else "is not a notebook"
        help_ = "; save it in format 4 (jupyter nbconvert --to notebook)" if known else ""
        raise NotebookError(message + help_)
    if not is_notebook:
        raise NotebookError("is not a notebook: it has no cells")
    if language.lower() in LANGUAGES:
        yield from found


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found is not None else at


_DECODER = JSONDecoder()


def _value(text: str, at: int) -> tuple[Any, int]:
    """A JSON value and where it ends."""
    return _DECODER.raw_decode(text, at)


def _closing(text: str, at: int, bracket: str) -> int:
    at = _skip(text, at)
    if text[at : at + 1] != bracket:
        raise json.JSONDecodeError(f"Expecting ',' or '{bracket}'", text, at)
    return at + 1


def _object_end(text: str, at: int) -> int:
    return _value(text, at)[1]


def _members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Key, start and end of every value of the JSON object at ``at``."""
    at = _skip(text, at + 1)
    while text[at : at + 1] != "}":
        key, end = _value(text, at)
        at = _skip(text, end)
        if not isinstance(key, str) or text[at : at + 1] != ":":
            raise json.JSONDecodeError("Expecting a name and ':'", text, at)
        start = _skip(text, at + 1)
        end = _value(text, start)[1]
        yield key, start, end
        at = _skip(text, end)
        if text[at : at + 1] != ",":
            break
        at = _skip(text, at + 1)


def _elements(text: str, at: int) -> Iterator[tuple[int, int]]:
    """Start and end of every value of the JSON array at ``at``, which is known to be whole."""
    at = _skip(text, at + 1)
    while text[at] != "]":
        end = _value(text, at)[1]
        yield at, end
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _code_cells(text: str, at: int) -> Iterator[Cell]:
    for number, (start, _) in enumerate(_elements(text, at), 1):
        if text[start] != "{":
            raise NotebookError(f"is not a notebook: cell {number} is no JSON object")
        kind, span, foreign = None, None, False
        for key, first, end in _members(text, start):
            if key == "cell_type":
                kind = _value(text, first)[0]
            elif key == "source":
                span = first, end
            elif key == "metadata":
                foreign = _cell_language(_value(text, first)[0]).lower() not in LANGUAGES
        if kind != "code" or span is None or foreign:
            continue
        source = _value(text, span[0])[0]
        lines = source if isinstance(source, list) else [source]
        if not all(isinstance(line, str) for line in lines):
            raise NotebookError("has a source that is neither a string nor strings", cell=number)
        yield Cell(number, "".join(lines), *span)


def _language(metadata: object) -> str:
    """The language of a notebook, as its metadata has it."""
    if isinstance(metadata, dict):
        for holder, key in (("language_info", "name"), ("kernelspec", "language")):
            named = metadata.get(holder)
            if isinstance(named, dict) and isinstance(named.get(key), str):
                return str(named[key])
    return ""


def _cell_language(metadata: object) -> str:
    editor = metadata.get("vscode") if isinstance(metadata, dict) else None
    language = editor.get("languageId") if isinstance(editor, dict) else None
    return language if isinstance(language, str) else ""


def _listed(text: str, cell: Cell) -> list[tuple[int, str, str]]:
    """Every line of a cell: where it stands in the notebook, its JSON spelling, what that means.

    The spelling is without quotes, the meaning with the line end.
    """
    if text[cell.start] == '"':
        spans = [(cell.start, cell.end)]
    else:
        spans = list(_elements(text, cell.start))
    found = []
    for start, end in spans:
        at = start + 1
        for piece in _lines_of_string(text[at : end - 1]):
            found.append((at, piece, json.loads(f'"{piece}"')))
            at += len(piece)
    return found


def _lines_of_string(spelled: str) -> Iterator[str]:
    """The parts of the inside of a JSON string that end with a line end."""
    at = done = 0
    while (found := spelled.find("\\", at)) != -1:
        newline = _PIECE.match(spelled, found)
        at = newline.end() if newline is not None else found + 2
        if newline is not None:
            yield spelled[done:at]
            done = at
    if spelled[done:]:
        yield spelled[done:]


def _respelled(text: str, cell: Cell, new: str) -> str:
    """The value of "source" with new lines in it: lines that were there keep their spelling, and
    a list its layout."""
    spelled = {meaning: piece for _, piece, meaning in _listed(text, cell)}
    old = text[cell.start : cell.end]
    # A file that spells one character as an escape spells all so; control characters always are.
    escaped = text.isascii() and re.search(r"\\u(?!00[0-7])", text) is not None
    lines = [
        spelled.get(line) or json.dumps(line, ensure_ascii=escaped)[1:-1] for line in _lines(new)
    ]
    if old.startswith('"'):
        return f'"{"".join(lines)}"'
    spans = list(_elements(text, cell.start))
    if not lines or not spans:
        return json.dumps([json.loads(f'"{line}"') for line in lines], ensure_ascii=escaped)
    opening = text[cell.start + 1 : spans[0][0]]
    between = text[spans[0][1] : spans[1][0]] if len(spans) > 1 else f",{opening or ' '}"
    closing = text[spans[-1][1] : cell.end]
    return "[" + opening + between.join(f'"{line}"' for line in lines) + closing


def _lines(text: str) -> list[str]:
    """Lines with their ends. As notebooks have them, but for rare characters that end lines too."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


def code(data: bytes) -> bytes:
    """All code of a notebook as one text, for looking at words and imports.

    Of what cannot be read as a notebook it is the bytes, with line ends in strings as such.
    """
    try:
        cells = Notebook.read(data).cells
        return "\n".join(cell.text for cell in cells).encode("utf-8", "replace")
    except NotebookError:
        return re.sub(rb'"?\\n"?', b"\n", spelled.unescaped(data))


# -- what is not Python ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Mask:
    """A name that stands for what is not Python. ``code`` is what it runs where that is Python
    and part of the source: then the name is in a comment behind it."""

    name: str
    text: str
    code: str = ""
    whole: bool = False  # a cell that is not Python at all
    shares_names: bool = True  # with the notebook, as far as can be told

    def restore(self, text: str, start: int) -> tuple[str, int]:
        """``text`` with what was masked, and where that ends.

        Raises:
            SplitError: it is not there any more, or not as it was.
        """
        name = re.escape(self.name)
        if self.code:
            pattern = rf"(?m)(?<=^)([ \t]*){re.escape(self.code)}  # {name}$"
        else:
            pattern = rf"()\({name}\s*\)|(?<!\w)(){name}(?!\w)"
        found = re.compile(pattern).search(text, start)
        if found is None or text.count(self.name) != 1:
            raise SplitError(f"the new code has lost, or moved, {self.text.strip()!r}")
        restored = (found.group(1) or "") + self.text
        return text[: found.start()] + restored + text[found.end() :], found.start() + len(restored)


def _masked(text: str, names: Iterator[str]) -> tuple[str, list[Mask]]:
    """Cell text that may be Python, everything else masked. Lines stay where they are."""
    masks: list[Mask] = []
    at = 0
    out: list[str] = []
    while (magic := _MAGIC.match(text, at)) is not None and magic.group(1) in TRANSPARENT:
        command = magic.group().lstrip()
        name = next(names)
        masks.append(Mask(name, command))
        out.append(magic.group().removesuffix(command) + name)
        at = magic.end()
    rest = text[at:]
    if _parses(rest):
        return "".join(out) + rest, masks
    for line in _logical_lines(rest):
        out.append(_masked_line(line, names, masks))
    return "".join(out), masks


def _masked_line(line: str, names: Iterator[str], masks: list[Mask]) -> str:
    bare = line.rstrip("\n")
    end = line[len(bare) :]
    timed = _TIMED.fullmatch(bare)
    if timed is not None and "#" not in bare and _parses(timed.group(3)):
        mask = Mask(next(names), timed.group(2) + timed.group(3), timed.group(3))
        masks.append(mask)
        return f"{timed.group(1)}{mask.code}  # {mask.name}{end}"
    before, text = "", ""
    if (assigned := _ASSIGNED.fullmatch(bare)) is not None:
        before, text = assigned.groups()
    elif _COMMAND.match(bare) or _asks_for_help(bare):
        text = bare.lstrip(" \t")
        before = bare[: len(bare) - len(text)]
    if not text:
        return line
    mask = Mask(next(names), text, shares_names=not text.startswith("!"))
    masks.append(mask)
    inner = text.count("\n")
    return before + (f"({mask.name}{inner * chr(10)})" if inner else mask.name) + end


def _parses(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _logical_lines(text: str) -> Iterator[str]:
    """Statements with the lines they go on over; commands go on after a backslash only."""
    start = 0
    while start < len(text):
        end = _line_end(text, start)
        line = text[start:end]
        if _COMMAND.match(line) or _ASSIGNED.fullmatch(line.rstrip("\n")):
            while line.rstrip("\n").endswith("\\") and end < len(text):
                end = _line_end(text, end)
                line = text[start:end]
        else:
            end = _statement_end(text, start)
        yield text[start:end]
        start = end


def _line_end(text: str, start: int) -> int:
    found = text.find("\n", start)
    return len(text) if found == -1 else found + 1


_TOKEN = re.compile(r"\"\"\"|'''|[\"'#()\[\]{}\n\\]")


def _statement_end(text: str, start: int) -> int:
    """Behind the line end that ends the statement at ``start``: not one in brackets or strings."""
    depth = 0
    at = start
    while (found := _TOKEN.search(text, at)) is not None:
        token, at = found.group(), found.end()
        if token == "\n" and depth <= 0:
            return at
        if token in "([{":
            depth += 1
        elif token in ")]}":
            depth -= 1
        elif token == "\\":
            at += 1
        elif token == "#":
            at = text.find("\n", at)
            at = len(text) if at == -1 else at
        elif token[0] in "\"'":
            at = _string_end(text, at, token)
    return len(text)


def _string_end(text: str, at: int, quotes: str) -> int:
    closing = re.compile(rf"\\.|{quotes}" + ("" if len(quotes) == 3 else r"|\n"), re.DOTALL)
    while (found := closing.search(text, at)) is not None:
        if not found.group().startswith("\\"):
            return found.start() if found.group() == "\n" else found.end()
        at = found.end()
    return len(text)


def _asks_for_help(line: str) -> bool:
    """``torch.save?``: outside strings and comments nothing of Python ends so."""
    return re.fullmatch(r"\s*[\w.*%\[\]]+\?\??\s*", line) is not None


# -- a notebook as sources ------------------------------------------------------------------------


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
        magic = _MAGIC.match(cell.code)
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
            code_, masks = _masked(cell.code, given)
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
    if ".." in pure.parts or not _parses(cell.code[magic.end() :]):
        return None
    target = path.parent / pure
    if not target.parent.is_dir() and len(pure.parts) > 1:
        return None
    if target in used or target.exists():  # what is there has its own say
        return path.parent / f"{path.name} cell {cell.number} {pure.name}"
    return target


def _file(notebook: Notebook, cell: Cell, magic: re.Match[str]) -> tuple[str, Excerpt]:
    head = cell.code[: _line_end(cell.code, magic.end())]
    text = cell.code[len(head) :]
    return text, Excerpt(notebook, (Piece(cell, 1, head, "", (), text),), text)
