"""What every report format is made from."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fsdp_migrate import shown
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.planning.outcome import Outcome, place
from fsdp_migrate.planning.result import (
    Configured,
    HeldBack,
    NotFollowed,
    Problem,
    Requirement,
    Result,
)
from fsdp_migrate.report.edits import Edit, edits, text

if TYPE_CHECKING:
    from fsdp_migrate.analysis.module import Module
    from fsdp_migrate.planning.hazard import Hazard
    from fsdp_migrate.planning.model import Decision


class _Placed:
    """Something that stands at a place of a file, or of a cell of a notebook."""

    path: str
    line: int
    column: int
    cell: int
    file_line: int

    @property
    def place(self) -> str:
        return f"{self.where}:{self.column}"

    @property
    def where(self) -> str:
        """The line without the column."""
        return place(self.path, self.line, self.cell)

    @property
    def in_file(self) -> int:
        """The line of the file itself, which in notebooks is not the cell's."""
        return self.file_line or self.line


@dataclass(frozen=True)
class Event(_Placed):
    """One site and how it ended. Lines and columns are 1-based; ``width`` is in characters."""

    path: str
    line: int
    column: int
    width: int
    code: str
    outcome: Outcome
    construct: Construct
    message: str
    help: str
    source: str  # the line the site begins on
    held: bool = False
    ignored: bool = False  # it stays, or is not reported, because the user says so
    end_line: int = 0  # of an expression; elsewhere the line itself
    end_column: int = 0  # of a hazard, behind its last character
    guarded: bool = False  # left, and a guard stops the program there
    models: tuple[str, ...] = ()  # of a guarded site: where its models are made
    cell: int = 0  # of a notebook, from 1; then ``line`` is the cell's
    file_line: int = 0  # of the file itself; 0: the same


@dataclass(frozen=True)
class Remark(_Placed):
    """What is said of a place that is no site: a comment of ours that stands in code (a marker, or
    an ignore comment to no purpose), or a hazard."""

    path: str
    line: int
    column: int
    code: str
    message: str
    help: str
    source: str
    width: int
    listed: bool = False  # a marker of a site that is reported anyway
    target: int = 0  # the line of code that a marker speaks of, where there is one
    cell: int = 0  # of a notebook, from 1; then ``line`` is the cell's
    file_line: int = 0
    is_hazard: bool = False  # in code that uses FSDP2
    is_note: bool = False  # a hazard that there may be
    is_mended: bool = False  # a hazard that this run has put right
    edits: tuple[Edit, ...] = ()  # what ``rewrite --hazards`` does to its file
    end_line: int = 0  # of a marker, or a hazard
    end_column: int = 0  # of a hazard, behind its last character


@dataclass(frozen=True)
class Coverage:
    """How many sites there are, and how they ended; ``left`` includes ``ignored``."""

    sites: int = 0
    rewritten: int = 0
    review: int = 0
    left: int = 0
    ignored: int = 0

    @property
    def counted(self) -> int:
        """The sites that are not ignored."""
        return self.sites - self.ignored

    @property
    def for_you(self) -> int:
        return self.left - self.ignored

    @property
    def coverage(self) -> float:
        """Rewritten and reviewed sites, as a share of those not ignored; 1.0 without any."""
        return (self.rewritten + self.review) / self.counted if self.counted else 1.0

    @property
    def percent(self) -> str:
        """The coverage as text, rounded down: 100 means all."""
        done, whole = self.rewritten + self.review, self.counted
        tenths = 1000 * done // whole if whole else 1000
        return f"{tenths // 10}.{tenths % 10}".removesuffix(".0")

    def reaches(self, percent: float) -> bool:
        """Whether at least this share is covered, without rounding."""
        return 100 * (self.rewritten + self.review) >= percent * self.counted


@dataclass(frozen=True)
class Summary(Coverage):
    changed: tuple[str, ...] = ()
    created: tuple[str, ...] = ()
    files: int = 0
    look_alikes: tuple[str, ...] = ()  # without any of torch's FSDP
    seconds: float = 0.0
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = field(default=())
    markers: tuple[Remark, ...] = ()
    unused: tuple[Remark, ...] = ()  # ignore comments that ignore nothing
    hazards: tuple[Remark, ...] = ()  # in code that uses FSDP2
    possible: tuple[Remark, ...] = ()  # hazards that there may be
    untold: int = 0  # how many of these nobody asked for
    not_followed: tuple[NotFollowed, ...] = ()
    held_back: tuple[HeldBack, ...] = ()
    requirements: tuple[Requirement, ...] = ()  # of torch: raised, or left though too low
    root: Path = Path()  # what a code host calls the files relative to
    rule_paths: tuple[Path, ...] = ()
    contents: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # before, after
    # The checks of `verify` that decide about the sites of a rule, by its code.
    checks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rewrite: str = "fsdp-migrate rewrite"  # the command that does what is to be done


def by_file(found: Iterable[Event]) -> dict[str, Coverage]:
    """The coverage of every file with sites, in order."""
    listed: dict[str, list[Event]] = {}
    for event in found:
        listed.setdefault(event.path, []).append(event)
    return {path: _coverage(own) for path, own in listed.items()}


def _coverage(found: Sequence[Event]) -> Coverage:
    ended = Counter(Outcome.LEFT if e.ignored else e.outcome for e in found)
    return Coverage(
        len(found),
        ended[Outcome.REWRITTEN],
        ended[Outcome.REVIEW],
        ended[Outcome.LEFT],
        sum(e.ignored for e in found),
    )


def events(result: Result) -> list[Event]:
    """The decisions of a run in the order of files and lines, those about configurations last."""
    return [*map(_event, result.decisions), *map(_event_of_setting, result.configured)]


def printable(found: Iterable[Event]) -> list[Event]:
    """The events as text that a terminal shows and does not obey.

    Formats for programs have the events themselves: their names are those of the files.
    """
    return [_printable(event) for event in found]


def printable_summary(total: Summary) -> Summary:
    """Likewise what is told about the run."""
    return replace(
        total,
        changed=tuple(map(shown.path, total.changed)),
        created=tuple(map(shown.path, total.created)),
        problems=tuple(
            replace(p, display=shown.path(p.display), message=shown.line(p.message))
            for p in total.problems
        ),
        notes=tuple(map(shown.line, total.notes)),
        markers=tuple(map(_printable, total.markers)),
        unused=tuple(map(_printable, total.unused)),
        hazards=tuple(map(_printable, total.hazards)),
        possible=tuple(map(_printable, total.possible)),
        not_followed=tuple(
            replace(n, display=shown.path(n.display), why=shown.line(n.why))
            for n in total.not_followed
        ),
        held_back=tuple(
            replace(h, places=tuple(map(shown.path, h.places))) for h in total.held_back
        ),
        requirements=tuple(
            replace(r, display=shown.path(r.display), message=shown.line(r.message))
            for r in total.requirements
        ),
    )


_Shown = TypeVar("_Shown", Event, Remark)


def _printable(found: _Shown) -> _Shown:
    values: dict[str, Any] = {each.name: getattr(found, each.name) for each in fields(found)}
    for name, value in values.items():
        if name in {"path", "models"}:
            values[name] = _paths(value)
        elif isinstance(value, str) and name != "source":  # it is escaped where it is cut
            values[name] = shown.line(value)
    return type(found)(**values)


def _paths(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    return shown.path(value) if isinstance(value, str) else tuple(map(shown.path, value))


def _event(decision: Decision) -> Event:
    site = decision.site
    line, column = site.position
    cell, shown_line, shown_column = site.place
    excerpt = site.module.source.excerpt
    first, width = _first_line(site.node, site.module, line, column)
    last, end_column = _end(site.node, site.module, line, shown_column + width)
    help_ = decision.help
    if decision.guard.problem:
        help_ += f"; no guard can stand there: {decision.guard.problem}"
    makers = sorted(
        (c.module.display, *c.module.source.place(*c.module.position(c.defined_by or c.call)))
        for c in (decision.models if decision.guarded else ())
    )
    return Event(
        path=site.module.display,
        line=shown_line,
        column=shown_column,
        width=width,
        code=decision.code,
        outcome=decision.outcome,
        construct=site.construct,
        message=decision.message,
        help=help_,
        source=first,
        held=decision.held,
        ignored=decision.is_ignored,
        end_line=shown_line + last - line,
        end_column=end_column,
        guarded=decision.guarded,
        models=tuple(dict.fromkeys(place(path, row, cell) for path, cell, row, _ in makers)),
        cell=cell,
        file_line=0 if excerpt is None else excerpt.file_line(line),
    )


def _first_line(node: ast.AST, module: Module, line: int, column: int) -> tuple[str, int]:
    """The line that a node begins on, as it is shown, and how many characters it has of it."""
    source = module.source
    text = source.lines[line - 1] if line <= len(source.lines) else ""
    end = getattr(node, "end_col_offset", None)
    if getattr(node, "end_lineno", line) == line and end is not None:
        width = source.column(line, end) + 1 - column
    else:
        width = len(text) - column + 1
    return text if source.excerpt is None else source.excerpt.shown(line), max(1, width)


def _end(node: ast.AST, module: Module, line: int, column: int) -> tuple[int, int]:
    """The last line of an expression that begins on a line, and the column behind it, which is
    this one where it ends on the same line."""
    last = line if isinstance(node, ast.stmt) else getattr(node, "end_lineno", line)
    end = getattr(node, "end_col_offset", None)
    if last != line and end is not None:
        column = module.source.column(last, end) + 1
    return last, column


def _remark(hazard: Hazard) -> Remark:
    source = hazard.module.source
    line, column = hazard.module.position(hazard.node)
    cell, shown_line, shown_column = source.place(line, column)
    first, width = _first_line(hazard.node, hazard.module, line, column)
    last, end_column = _end(hazard.node, hazard.module, line, shown_column + width)
    return Remark(
        path=hazard.module.display,
        line=shown_line,
        column=shown_column,
        code=hazard.code,
        message=hazard.message,
        help=hazard.help,
        source=first,
        width=width,
        cell=cell,
        file_line=0 if source.excerpt is None else source.excerpt.file_line(line),
        is_hazard=True,
        is_note=hazard.is_note,
        is_mended=hazard.is_mended,
        edits=_mend(hazard),
        end_line=shown_line + last - line,
        end_column=end_column,
    )


def _mend(hazard: Hazard) -> tuple[Edit, ...]:
    """What puts a hazard right, as spans of lines of its file."""
    source = hazard.module.source
    if not hazard.mended:
        return ()
    before, after = source.data, hazard.mended
    if source.excerpt is not None:
        from fsdp_migrate.rewriting import cells

        before = source.excerpt.notebook.text.encode()
        (after,) = cells.join_notebooks([hazard.module], {hazard.module.path: after}).values()
    return tuple(edits(text(before) or "", text(after) or ""))


def _event_of_setting(found: Configured) -> Event:
    return Event(
        path=found.display,
        line=found.line,
        column=found.column,
        width=found.width,
        code=found.code,
        outcome=found.outcome,
        construct=Construct(ConstructKind.NAME, found.name),
        message=found.message,
        help=found.help,
        source=found.source,
        held=found.held,
        ignored=found.is_ignored,
        end_line=found.end_line,
        end_column=found.column + found.width if found.end_line == found.line else 0,
        cell=found.cell,
        file_line=found.file_line,
    )


def summary(result: Result) -> Summary:
    """What the result alone tells.

    Where everything stays FSDP1, it does not matter what is not followed.
    """
    number = len(result.decisions)
    stay = sum(d.outcome is Outcome.LEFT for d in result.decisions)
    return Summary(
        sites=result.sites,
        rewritten=result.count(Outcome.REWRITTEN),
        review=result.count(Outcome.REVIEW),
        left=result.count(Outcome.LEFT),
        ignored=result.ignored,
        problems=tuple(result.problems),
        requirements=tuple(result.requirements),
        hazards=tuple(_remark(h) for h in result.hazards if h.is_reported),
        possible=tuple(_remark(h) for h in result.hazards if h.is_note and h.ignored is None),
        not_followed=tuple(result.not_followed) if stay < number else (),
        held_back=tuple(result.held_back),
    )
