"""One source file: its bytes, how they are encoded, and its syntax tree."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.syntax.kinds import present

if TYPE_CHECKING:
    from fsdp_migrate.syntax.notebook_sources import Excerpt


class SourceError(Exception):
    """A file cannot be read as Python. ``line`` is 1-based, 0 when the whole file is meant."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


LARGEST = 8 << 20  # bytes; a syntax tree takes a hundred times as much memory


@dataclass(eq=False)
class Source:
    """A Python file as read from disk. Never modified; an edited file is a new ``bytes``."""

    path: Path
    display: str  # how messages name the file: POSIX, relative where possible
    data: bytes
    encoding: str
    text: str = field(repr=False)  # decoded, without byte order mark, line endings as in the file
    excerpt: Excerpt | None = field(default=None, repr=False)  # the notebook it was taken from

    @classmethod
    def parse(cls, data: bytes, *, path: Path | None = None, display: str | None = None) -> Source:
        """Parse ``data`` as Python.

        Raises:
            SourceError: undecodable bytes, an unknown encoding cookie, NUL bytes, a syntax error,
                or nesting too deep for the parser.
        """
        source = cls.decode(data, path=path, display=display)
        _ = source.tree
        return source

    @classmethod
    def decode(cls, data: bytes, *, path: Path | None = None, display: str | None = None) -> Source:
        """As :meth:`parse`, but the tree is made, or fails to be made, when it is asked for.

        Raises:
            SourceError: undecodable bytes, an unknown encoding cookie, or too many bytes.
        """
        if len(data) > LARGEST:
            raise SourceError(f"is larger than {LARGEST >> 20} MiB, and is not analysed")
        path = path or Path("<string>")
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            text = data.decode(encoding)
        except SyntaxError as error:
            raise SourceError(f"cannot be decoded: {error.msg}") from None
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            message = f"cannot be decoded as {error.encoding}: byte 0x{data[error.start]:02x}"
            raise SourceError(message, line) from None
        except Exception as error:  # a codec may raise anything
            raise SourceError(f"cannot be decoded: {error}") from None
        return cls(path, display or path.as_posix(), data, encoding, text)

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree.

        Raises:
            SourceError: NUL bytes, a syntax error, or nesting too deep for the parser.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes are the author's business
                return ast.parse(self.data)
        except SyntaxError as error:
            message = f"does not parse: {error.msg}"
            if sys.version_info < (3, 12) and "f-string" in error.msg:  # quotes within its quotes
                message += " (Python 3.12 reads more f-strings: run this with it)"
            raise SourceError(message, error.lineno or 0) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise SourceError(f"does not parse: {error or type(error).__name__}") from None

    @cached_property
    def lines(self) -> list[str]:
        """Physical lines without their ends, split where the Python tokenizer splits."""
        return self.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")

    @property
    def file(self) -> Path:
        """The file that it stands in, which may be a notebook."""
        return self.path if self.excerpt is None else self.excerpt.notebook.path

    def place(self, line: int, column: int = 1) -> tuple[int, int, int]:
        """Cell (0 outside notebooks), line and column as whoever opens the file sees them."""
        return (0, line, column) if self.excerpt is None else self.excerpt.place(line, column)

    def column(self, line: int, utf8_offset: int) -> int:
        """Turn ``ast``'s UTF-8 byte offset on a 1-based line into a 0-based character column."""
        text = self.lines[line - 1]
        if text.isascii():
            return utf8_offset
        return len(text.encode("utf-8")[:utf8_offset].decode("utf-8", "ignore"))

    def comments(self, first: int, last: int) -> list[tuple[int, int, str]]:
        """Line, column and text of the comments from line ``first`` to ``last``, both included."""
        text = "\n".join(self.lines) + "\n"
        found = []
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.start[0] > last:
                break
            if token.type == tokenize.COMMENT and token.start[0] >= first:
                found.append((*token.start, token.string))
        return found

    def segment(self, node: ast.expr | ast.stmt) -> str:
        """The source text of a node, as written."""
        found = self.lines[node.lineno - 1 : present(node.end_lineno)]
        found[-1] = found[-1][: self.column(present(node.end_lineno), present(node.end_col_offset))]
        found[0] = found[0][self.column(node.lineno, node.col_offset) :]
        return "\n".join(found)
