"""What every report format is made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.result import Problem, Result
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
    guarded: bool = False  # left, and a guard stops the program there
    models: tuple[str, ...] = ()  # of a guarded site: where its models are made


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
    single = getattr(node, "end_lineno", line) == line
    end = getattr(node, "end_col_offset", None)
    if single and end is not None:
        width = site.module.source.column(line, end) + 1 - column
    else:
        width = len(text) - column + 1
    help_ = decision.help
    if decision.unguarded:
        help_ += f"; no guard can stand there: {decision.unguarded}"
    makers = sorted(
        (c.module.display, *c.module.position(c.defined_by or c.call))
        for c in (decision.models if decision.guarded else ())
    )
    return Event(
        path=site.module.display,
        line=line,
        column=column,
        width=max(1, width),
        code=decision.code,
        outcome=decision.outcome,
        construct=site.construct,
        message=decision.message,
        help=help_,
        source=text,
        held=decision.held,
        guarded=decision.guarded,
        models=tuple(dict.fromkeys(f"{path}:{row}" for path, row, _ in makers)),
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
