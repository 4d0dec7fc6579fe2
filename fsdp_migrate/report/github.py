"""GitHub Actions workflow commands: annotations on the lines of a pull request."""

from __future__ import annotations

from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.report.event import Event, Remark, Summary
from fsdp_migrate.report.text import headline, remark, remarks, to_do

LEVELS = {Outcome.REWRITTEN: "notice", Outcome.REVIEW: "warning", Outcome.LEFT: "warning"}


def render(found: list[Event], total: Summary) -> str:
    lines = [_annotation(e) for e in found if not e.ignored]
    lines += map(_annotated, remarks(total))
    for problem in total.problems:
        lines.append(
            f"::error file={_property(problem.display)},line={problem.in_file or 1}"
            f"::{_data(problem.message)}"
        )
    if total.sites or total.problems or total.hazards:
        lines.append(f"::notice title=fsdp-migrate::{_data(to_do(total))}")
    return "".join(f"{line}\n" for line in lines)


def _annotated(found: Remark) -> str:
    text = f"{remark(found)}\n{found.help}" if found.is_hazard else remark(found)
    level = "warning" if found.is_hazard and not found.is_note else "notice"
    return (
        f"::{level} {_where(found)},title={_property(found.code)}::{_data(_in_cell(found, text))}"
    )


def _annotation(event: Event) -> str:
    text = headline(event) + (f"\n{event.help}" if event.help else "")
    title = f"{event.code} (review)" if event.outcome is Outcome.REVIEW else event.code
    said = _data(_in_cell(event, text))
    return f"::{LEVELS[event.outcome]} {_where(event)},title={_property(title)}::{said}"


def _where(of: Event | Remark) -> str:
    where = f"file={_property(of.path)},line={of.in_file}"
    if of.cell:  # the file's columns are not the cell's
        return where
    where += f",col={of.column}"
    where += f",endLine={of.end_line}" if of.end_line else ""
    return where + (f",endColumn={of.end_column}" if of.end_column else "")


def _in_cell(of: Event | Remark, text: str) -> str:
    return f"cell {of.cell}, line {of.line}: {text}" if of.cell else text


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
