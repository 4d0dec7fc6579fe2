"""What every report format is made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.result import Problem, Result, place
from fsdp_migrate.rule import Outcome

if TYPE_CHECKING:
    from fsdp_migrate.study import Decision


@dataclass(frozen=True)
class Event:
    """One site and how it ended. Lines and columns are 1-based; ``width`` is in characters."""

    path: str
    line: int
    column: int
    width: int
    code: str
    outcome: Outcome
    construct: str
    message: str
    help: str
    source: str  # the line the site begins on
    held: bool = False
    cell: int = 0  # of a notebook, from 1; then ``line`` is the cell's
    file_line: int = 0  # of the file itself; 0: the same

    @property
    def place(self) -> str:
        return f"{place(self.path, self.line, self.cell)}:{self.column}"


@dataclass(frozen=True)
class Summary:
    sites: int = 0
    rewritten: int = 0
    review: int = 0
    left: int = 0
    changed: tuple[str, ...] = ()
    created: tuple[str, ...] = ()
    files: int = 0
    seconds: float = 0.0
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def coverage(self) -> float:
        """Rewritten and reviewed sites, as a share of all; 1.0 without sites."""
        return (self.rewritten + self.review) / self.sites if self.sites else 1.0


def events(result: Result) -> list[Event]:
    """The decisions of a run in the order of files and lines."""
    return [_event(decision) for decision in result.decisions]


def _event(decision: Decision) -> Event:
    site = decision.site
    line, column = site.position
    lines = site.module.source.lines
    text = lines[line - 1] if line <= len(lines) else ""
    node = site.node
    cell, shown_line, shown_column = site.place
    excerpt = site.module.source.excerpt
    single = getattr(node, "end_lineno", line) == line
    end = getattr(node, "end_col_offset", None)
    if single and end is not None:
        width = site.module.source.column(line, end) + 1 - column
    else:
        width = len(text) - column + 1
    return Event(
        path=site.module.display,
        line=shown_line,
        column=shown_column,
        width=max(1, width),
        code=decision.code,
        outcome=decision.outcome,
        construct=site.construct,
        message=decision.message,
        help=decision.help,
        source=text if excerpt is None else excerpt.shown(line),
        held=decision.held,
        cell=cell,
        file_line=0 if excerpt is None else excerpt.file_line(line),
    )


def summary(
    result: Result,
    *,
    changed: tuple[str, ...] = (),
    created: tuple[str, ...] = (),
    files: int = 0,
    seconds: float = 0.0,
    notes: tuple[str, ...] = (),
) -> Summary:
    return Summary(
        sites=len(result.decisions),
        rewritten=result.count(Outcome.REWRITTEN),
        review=result.count(Outcome.REVIEW),
        left=result.count(Outcome.LEFT),
        changed=changed,
        created=created,
        files=files,
        seconds=seconds,
        problems=tuple(result.problems),
        notes=notes,
    )
