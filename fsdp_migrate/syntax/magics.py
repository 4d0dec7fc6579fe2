"""What is not Python in the cells of a notebook: magics, shell commands and questions for help.

A name stands for each ``%matplotlib inline``, ``!pip install`` and ``torch?``, so that the rest of
the cell parses; :meth:`Mask.restore` puts the command back as it was.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

# Cell magics that run the rest of the cell as Python in the notebook's own names.
TRANSPARENT = frozenset(
    (
        *("capture", "debug", "heat", "ipytest", "memit", "memray_flamegraph", "mprun", "prun"),
        *("px", "scalene", "snakeviz", "time", "timeit", "wandb"),
    )
)
NAME = "__fsdp_migrate_{}_{}__"
_COMMAND = re.compile(r"[ \t]*[%!?,;/]")
# Nothing with quotes in it, which might hide a string.
_ASSIGNED = re.compile(r"([ \t]*[A-Za-z_][\w.,\[\] \t]*=[ \t]*)([%!](?!=).*)", re.DOTALL)
_TIMED = re.compile(r"([ \t]*)(%(?:time|timeit(?:[ \t]+-(?:[nrp][ \t]*\d+|[tcqo]))*)[ \t]+)(\S.*)")
MAGIC = re.compile(r"\s*%%(\w+)(.*)")


class SplitError(Exception):
    """New code cannot be told apart into the cells it came from. The message says why."""


@dataclass(frozen=True, eq=False)
class Mask:
    """A name that stands for a command in the source.

    Of ``%time train()`` the source keeps ``train()``, the ``code``, with the name in a comment
    behind it.
    """

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


def mask_commands(text: str, names: Iterator[str]) -> tuple[str, list[Mask]]:
    """Cell text that may be Python, everything else masked. Lines stay where they are."""
    masks: list[Mask] = []
    at = 0
    out: list[str] = []
    while (magic := MAGIC.match(text, at)) is not None and magic.group(1) in TRANSPARENT:
        command = magic.group().lstrip()
        name = next(names)
        masks.append(Mask(name, command))
        out.append(magic.group().removesuffix(command) + name)
        at = magic.end()
    rest = text[at:]
    if parses(rest):
        return "".join(out) + rest, masks
    for line in _logical_lines(rest):
        out.append(_mask_line(line, names, masks))
    return "".join(out), masks


def _mask_line(line: str, names: Iterator[str], masks: list[Mask]) -> str:
    bare = line.rstrip("\n")
    end = line[len(bare) :]
    timed = _TIMED.fullmatch(bare)
    if timed is not None and "#" not in bare and parses(timed.group(3)):
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


def parses(text: str) -> bool:
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
        end = line_end(text, start)
        line = text[start:end]
        if _COMMAND.match(line) or _ASSIGNED.fullmatch(line.rstrip("\n")):
            while line.rstrip("\n").endswith("\\") and end < len(text):
                end = line_end(text, end)
                line = text[start:end]
        else:
            end = _statement_end(text, start)
        yield text[start:end]
        start = end


def line_end(text: str, start: int) -> int:
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
