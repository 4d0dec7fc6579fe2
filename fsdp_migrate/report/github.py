"""GitHub Actions workflow commands: annotations on the lines of a pull request."""

from __future__ import annotations

from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.report.event import Event, Summary
from fsdp_migrate.report.text import headline, remark, remarks

LEVELS = {Outcome.REWRITTEN: "notice", Outcome.REVIEW: "warning", Outcome.LEFT: "warning"}


def render(found: list[Event], total: Summary) -> str:
    lines = [_annotation(e) for e in found if not e.ignored]
    lines += [
        f"::notice file={_property(r.path)},line={r.line},col={r.column},title={_property(r.code)}"
        f"::{_data(remark(r))}"
        for r in remarks(total)
    ]
    for problem in total.problems:
        lines.append(
            f"::error file={_property(problem.display)},line={problem.line or 1}"
            f"::{_data(problem.message)}"
        )
    return "".join(f"{line}\n" for line in lines)


def _annotation(event: Event) -> str:
    line = event.file_line or event.line
    text = headline(event) + (f"\n{event.help}" if event.help else "")
    return (
        f"::{LEVELS[event.outcome]} file={_property(event.path)},line={line},"
        f"col={event.column},title={_property(event.code)}::{_data(text)}"
    )


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
