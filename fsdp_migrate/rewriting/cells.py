"""Notebooks in a run: their sources, edits that their cells forbid, and their new contents."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.edits import (
    AddKeyword,
    DropBranch,
    DropElse,
    Edit,
    Insert,
    MoveStatement,
    RemoveArgument,
    RenameKeyword,
    ReplaceStatement,
    Unwrap,
    new_code,
)
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.syntax.notebook import Cell, Notebook, NotebookError
from fsdp_migrate.syntax.notebook_sources import Excerpt, extracts
from fsdp_migrate.syntax.source import Source, SourceError


def read(data: bytes, path: Path, display: str, taken: Iterable[Path] = ()) -> list[Source]:
    """The sources of a notebook; ``taken`` are the paths of the run's other files.

    Raises:
        NotebookError: it cannot be read as a notebook, or a cell does not parse.
    """
    found = []
    for extract in extracts(data, path, taken):
        try:
            text = extract.text.encode("utf-8")
            source = Source.parse(text, path=extract.path, display=display)
        except UnicodeEncodeError:
            raise NotebookError("holds half of a surrogate pair, which no file can") from None
        except SourceError as error:
            cell, line, _ = extract.excerpt.place(max(1, error.line))
            raise NotebookError(error.message, line, cell) from None
        source.excerpt = extract.excerpt
        found.append(source)
    return found


def line_in_file(data: bytes, cell: int, line: int) -> int:
    """The line of a notebook's file on which a line of a cell stands; 0 if that cannot be said."""
    try:
        notebook = Notebook.read(data)
    except NotebookError:
        return 0
    found = next((each for each in notebook.cells if each.number == cell), None)
    return 0 if found is None else notebook.line(found, max(1, line))


MOVES = (
    "a statement would have to move to another cell of the notebook",
    "bring the two into one cell, and run again",
)
LATER = (
    "code of a later cell of the notebook would be needed here",
    "bring the two into one cell, and run again",
)
COMMAND = (
    "a command of the notebook (% or !) stands in this code",
    "take the command away, and run again",
)


def refusal(decision: Decision) -> tuple[str, str]:
    """Why an edit of a decision cannot be made in a notebook, and the next step; else nothing."""
    return first_refusal(decision.edits)


def first_refusal(edits: Iterable[Edit]) -> tuple[str, str]:
    """Likewise of edits."""
    for edit in edits:
        excerpt = edit.module.source.excerpt
        refused = _refused(edit, excerpt) if excerpt is not None else None
        if refused is not None:
            return refused
    return "", ""


def _refused(edit: Edit, excerpt: Excerpt) -> tuple[str, str] | None:
    node = edit.call if isinstance(edit, (RemoveArgument, AddKeyword, RenameKeyword)) else None
    node = node or getattr(edit, "node", None)
    if not isinstance(node, (ast.expr, ast.stmt)):
        return None
    here = excerpt.piece(node.lineno)
    if isinstance(edit, MoveStatement) and excerpt.piece(edit.after.lineno) is not here:
        return MOVES
    used = [node for code in new_code(edit) for node in code.old_nodes()]
    if any(excerpt.piece(n.lineno).line > here.line for n in used):
        return LATER
    lines = set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    if isinstance(edit, (ReplaceStatement, DropBranch, DropElse)):
        concerned = list(excerpt.masks.values())
    elif isinstance(edit, (Insert, Unwrap, MoveStatement)):
        return None
    else:
        concerned = [mask for mask in excerpt.masks.values() if mask.code]
    return None if lines.isdisjoint(excerpt.lines_of(concerned)) else COMMAND


def take_over_cells(module: Module, new: Source) -> None:
    """Tell the new source of a module where its notebook's cells are in it, if it has one.

    Raises:
        SplitError: the cells cannot be told apart in it.
    """
    excerpt = module.source.excerpt
    if excerpt is not None:
        excerpt.split(new.text)
        new.excerpt = excerpt.moved(new.text)


def join_notebooks(modules: Iterable[Module], changes: Mapping[Path, bytes]) -> dict[Path, bytes]:
    """``changes`` in which the new sources of a notebook are put together to the notebook."""
    result = dict(changes)
    new: dict[Notebook, dict[Cell, str]] = defaultdict(dict)
    for module in modules:
        excerpt = module.source.excerpt
        if excerpt is not None and module.path in result:
            text = result.pop(module.path).decode("utf-8")
            new[excerpt.notebook].update(excerpt.split(text))
    for notebook, cells in new.items():
        data = notebook.renewed(cells)
        if data != notebook.text.encode("utf-8"):
            result[notebook.path] = data
    return result
