"""The report as Markdown, for the description of a pull request or a job summary."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp_migrate import shown
from fsdp_migrate.report.markdown import code, text
from fsdp_migrate.verify.compare.gate import Gate, Status
from fsdp_migrate.verify.launch.ending import Ending
from fsdp_migrate.verify.report.cells import (
    STEPS,
    blamed_rank,
    gate_numbers,
    remark_lists,
    step_cells,
    traceback_lines,
    world_cells,
)
from fsdp_migrate.verify.report.model import Report
from fsdp_migrate.verify.report.text import chosen

_SIGNS = {
    Status.PASS: "pass",
    Status.FAIL: "**FAIL**",
    Status.VOID: "**void**",
    Status.COST: "**cost**",
    Status.NOTE: "note",
}


def render(report: Report) -> str:
    """The whole report, ending in a newline."""
    return shown.text("\n".join(_lines(report)) + "\n")


def _lines(report: Report) -> Iterator[str]:
    yield f"## verify: {report.word}, {report.title}"
    yield ""
    yield _cell(report.says)
    first = report.first_failure
    if first is not None and first.hint:
        yield ""
        yield f"Look at: {_cell(first.hint)}"
    if first is not None and report.points_at(first):
        yield ""
        yield f"Points at: {_cell(report.points_at(first))}"
    if report.caveat:
        yield ""
        yield f"**But** {_cell(report.caveat)}"
    yield ""
    yield f"- program: {code(report.program)}"
    yield f"- before: {code(report.before)}, after: {code(report.after)}"
    yield f"- {_cell(report.setting)}"
    for role, ending in report.endings.items():
        yield from _ending(role, ending)
    if report.rows:
        yield ""
        yield f"| {' | '.join(STEPS)} |"
        yield "|--:|--:|--:|--:|--:|--:|--:|"
        for row in chosen(report.rows):
            if row is None:
                yield "| ... | | | | | | |"
                continue
            yield f"| {' | '.join(step_cells(row))} |"
    if report.worlds:
        yield ""
        yield "| ranks | first loss | after | last loss | after | apart | parameters | to first |"
        yield "|--:|--:|--:|--:|--:|--:|--:|--:|"
        for world in report.worlds:
            yield f"| {' | '.join(world_cells(world))} |"
    if report.gates:
        yield ""
        yield from _gates(report)
    for title, items in remark_lists(report):
        yield ""
        yield f"**{title}**"
        yield ""
        for item in items:
            yield f"- {_cell(item)}"


def _gates(report: Report) -> Iterator[str]:
    decisive = any(g.status in (Status.FAIL, Status.VOID, Status.COST) for g in report.gates)
    yield f"<details{' open' if decisive else ''}><summary>{len(report.gates)} checks</summary>"
    yield ""
    yield "| check | | result | measured | allowed | noise |"
    yield "|---|---|---|--:|--:|--:|"
    for gate in report.gates:
        yield _gate(gate, report.points_at(gate))
    yield ""
    yield "</details>"


def _gate(gate: Gate, points_at: str) -> str:
    title = f"{gate.title}, {gate.part}" if gate.part else gate.title
    says = f"{gate.says}; points at {points_at}" if points_at else gate.says
    words = [_cell(title), _SIGNS[gate.status], _cell(says)]
    return f"| {' | '.join([*words, *gate_numbers(gate)])} |"


def _ending(role: str, ending: Ending) -> Iterator[str]:
    if not ending.says:
        return
    yield ""
    yield f"**{role}{blamed_rank(ending)}**: {_cell(ending.says)}"
    lines = traceback_lines(ending, indent="  ", most=6)
    if lines:
        fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", "\n".join(lines))), default=0))
        yield ""
        yield f"{fence}text"
        yield from map(shown.line, lines)
        yield fence


def _cell(value: str) -> str:
    """``value`` as text that Markdown shows as it is, also in a table."""
    return text(value, len(value))
