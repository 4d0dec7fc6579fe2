"""GitHub Actions workflow commands: annotations on the lines of a pull request."""

from __future__ import annotations

from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.report.event import Event, Remark, Summary
from fsdp_migrate.report.text import headline, remark, remarks, to_do

LEVELS = {Outcome.REWRITTEN: "notice", Outcome.REVIEW: "warning", Outcome.LEFT: "warning"}


def render(found: list[Event], total: Summary) -> str:
    lines = [_annotation(e) for e in found if not e.ignored]
    lines += [
        f"::{'warning' if r.is_hazard else 'notice'} file={_property(r.path)},line={r.in_file}"
        f"{'' if r.cell else f',col={r.column}'},title={_property(r.code)}::{_data(_told(r))}"
        for r in remarks(total)
    ]
    for problem in total.problems:
        lines.append(
            f"::error file={_property(problem.display)},line={problem.in_file or 1}"
            f"::{_data(problem.message)}"
        )
    if total.sites or total.problems or total.hazards:
        lines.append(f"::notice title=fsdp-migrate::{_data(to_do(total))}")
    return "".join(f"{line}\n" for line in lines)


def _told(found: Remark) -> str:
    return f"{remark(found)}\n{found.help}" if found.is_hazard else remark(found)


def _annotation(event: Event) -> str:
    text = headline(event) + (f"\n{event.help}" if event.help else "")
    where = f"file={_property(event.path)},line={event.in_file}"
    if event.cell:  # the file's columns are not the cell's
        text = f"cell {event.cell}, line {event.line}: {text}"
    else:
        where += f",col={event.column}"
        if event.end_line:
            where += f",endLine={event.end_line}"
        if event.end_column:
            where += f",endColumn={event.end_column}"
    title = f"{event.code} (review)" if event.outcome is Outcome.REVIEW else event.code
    return f"::{LEVELS[event.outcome]} {where},title={_property(title)}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
