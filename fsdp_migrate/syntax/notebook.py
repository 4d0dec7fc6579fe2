"""Jupyter notebooks: their code cells, and new code put back into their JSON.

New code is put back into the text of the JSON where the source of a cell stands, line by line, so
that a rewritten notebook differs in the lines that were rewritten and in no others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fsdp_migrate.syntax import spelled
from fsdp_migrate.syntax.json_text import (
    closing_end,
    elements,
    lines_of_string,
    members,
    skip_space,
    value_at,
)

SUFFIX = ".ipynb"
LANGUAGES = frozenset({"", "python", "python3", "ipython", "ipython3"})


class NotebookError(Exception):
    """A notebook cannot be read. ``cell`` and ``line`` are 1-based, 0 for the whole file."""

    def __init__(self, message: str, line: int = 0, cell: int = 0) -> None:
        super().__init__(message)
        self.message, self.line, self.cell = message, line, cell


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
    start = skip_space(text, 1 if text.startswith("\ufeff") else 0)
    found: list[Cell] = []
    language = ""
    version: object = None
    is_notebook = False
    if text[start : start + 1] != "{":
        raise NotebookError("is not a notebook: there is no JSON object in it")
    end = start
    for key, at, end in members(text, start):  # noqa: B007  # where the last one ended
        if key == "cells" and text[at] == "[":
            is_notebook = True
            found = list(_code_cells(text, at))
        elif key == "metadata":
            language = _language(value_at(text, at)[0])
        elif key == "nbformat":
            version = value_at(text, at)[0]
    end = value_at(text, start)[1] if end == start else closing_end(text, end, "}")
    if skip_space(text, end) != len(text):
        raise json.JSONDecodeError("Extra data", text, skip_space(text, end))
    if version != 4:
        known = isinstance(version, int)
        message = f"is a notebook of format {version}" if known else "is not a notebook"
        help_ = "; save it in format 4 (jupyter nbconvert --to notebook)" if known else ""
        raise NotebookError(message + help_)
    if not is_notebook:
        raise NotebookError("is not a notebook: it has no cells")
    if language.lower() in LANGUAGES:
        yield from found


def _code_cells(text: str, at: int) -> Iterator[Cell]:
    for number, (start, _) in enumerate(elements(text, at), 1):
        if text[start] != "{":
            raise NotebookError(f"is not a notebook: cell {number} is no JSON object")
        kind, span, foreign = None, None, False
        for key, first, end in members(text, start):
            if key == "cell_type":
                kind = value_at(text, first)[0]
            elif key == "source":
                span = first, end
            elif key == "metadata":
                foreign = _cell_language(value_at(text, first)[0]).lower() not in LANGUAGES
        if kind != "code" or span is None or foreign:
            continue
        source = value_at(text, span[0])[0]
        lines = source if isinstance(source, list) else [source]
        if not all(isinstance(line, str) for line in lines):
            raise NotebookError("has a source that is neither a string nor strings", cell=number)
        yield Cell(number, "".join(lines), *span)


def _language(metadata: object) -> str:
    """The language of a notebook, as its metadata has it."""
    match metadata:
        case {"language_info": {"name": str(named)}} | {"kernelspec": {"language": str(named)}}:
            return named
    return ""


def _cell_language(metadata: object) -> str:
    match metadata:
        case {"vscode": {"languageId": str(named)}}:
            return named
    return ""


def _listed(text: str, cell: Cell) -> list[tuple[int, str, str]]:
    """Every line of a cell: where it stands in the notebook, its JSON spelling, what that means.

    The spelling is without quotes, the meaning with the line end.
    """
    if text[cell.start] == '"':
        spans = [(cell.start, cell.end)]
    else:
        spans = list(elements(text, cell.start))
    found = []
    for start, end in spans:
        at = start + 1
        for piece in lines_of_string(text[at : end - 1]):
            found.append((at, piece, json.loads(f'"{piece}"')))
            at += len(piece)
    return found


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
    spans = list(elements(text, cell.start))
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


# -- a notebook as sources ------------------------------------------------------------------------
