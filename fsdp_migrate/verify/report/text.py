"""The report as plain text for a terminal or a log: no colour, no markup, lines below 100 columns
except where a name is longer."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from fsdp_migrate import shown
from fsdp_migrate.verify.compare.gate import Status
from fsdp_migrate.verify.compare.gates.training import Row
from fsdp_migrate.verify.launch.ending import Ending
from fsdp_migrate.verify.report.cells import blamed_rank, remark_lists, short, traceback_lines
from fsdp_migrate.verify.report.model import Report, World

_WIDTH = 98
_LEAST = 60  # less leaves nothing beside the names of checks
_MOST_ROWS = 12


def render(report: Report, columns: int = 0) -> str:
    """The whole screen, ending in a newline, for a terminal of so many columns; 0 means any."""
    columns = max(_LEAST, min(columns or _WIDTH, _WIDTH))
    return shown.text("\n".join(_lines(report, columns)) + "\n")


def _lines(report: Report, columns: int) -> Iterator[str]:
    yield f"program  {shown.line(report.program)}"
    yield f"before   {shown.line(report.before)}"
    yield f"after    {shown.line(report.after)}"
    if report.setting:
        yield from _wrapped(columns, "setting  ", shown.line(report.setting))
    if report.rows:
        yield ""
        yield from _table(report.rows)
    if report.worlds:
        yield ""
        yield from _worlds(report.worlds)
    if report.gates:
        yield ""
        yield from _gates(report, columns)
    for role, ending in report.endings.items():
        yield from _ending(role, ending, columns)
    for title, items in remark_lists(report):
        yield ""
        yield title.lower()
        for item in items:
            yield from _wrapped(columns, "  - ", item)
    yield ""
    head = f"VERDICT  {report.word}  "
    yield from _wrapped(columns, f"{head}{report.title}: ", report.says, indent=len(head))
    first = report.first_failure
    if first is not None and first.hint:
        yield from _wrapped(columns, " " * len(head) + "look at: ", first.hint)
    if first is not None and report.points_at(first):
        yield from _wrapped(columns, " " * len(head) + "points at: ", report.points_at(first))
    if report.caveat:
        yield from _wrapped(columns, " " * len(head) + "but: ", report.caveat)
    if report.kept:
        yield " " * len(head) + f"records: {shown.line(str(report.kept))}"


def chosen(rows: tuple[Row, ...]) -> Iterator[Row | None]:
    """First, last, and the steps between as far as there is room, None for a gap; the worst is
    always among them."""
    shown = set(range(len(rows)))
    if len(rows) > _MOST_ROWS:
        share = [row.difference / row.allowed if row.allowed else 0.0 for row in rows]
        worst = share.index(max(share))
        shown = {*range(_MOST_ROWS - 4), len(rows) - 2, len(rows) - 1, worst}
    for n, row in enumerate(rows):
        if n in shown:
            yield row
        elif n - 1 in shown:
            yield None


def _table(rows: tuple[Row, ...]) -> Iterator[str]:
    clipped = any(row.norms is not None for row in rows)
    head = f"{'step':>4}  {'loss before':>12}  {'loss after':>12}  {'|diff|':>8}  {'allowed':>8}"
    yield head + (f"  {'norm before':>12}  {'norm after':>12}" if clipped else "")
    for row in chosen(rows):
        if row is None:
            yield " ..."
            continue
        norms = f"  {row.norms[0]:>12.6g}  {row.norms[1]:>12.6g}" if row.norms else ""
        mark = "" if row.difference <= row.allowed else "  <"
        yield (
            f"{row.step:>4}  {row.before:>12.7g}  {row.after:>12.7g}  "
            f"{short(row.difference):>8}  {short(row.allowed):>8}{norms}{mark}"
        )


def _worlds(worlds: tuple[World, ...]) -> Iterator[str]:
    yield (
        f"{'ranks':>5}  {'first loss':>12}  {'after':>12}  {'last loss':>12}  {'after':>12}  "
        f"{'|diff|':>8}  {'params':>8}  {'to first':>8}"
    )
    for world in worlds:
        apart = [
            short(value) or "-"
            for value in (world.loss_apart, world.parameters_apart, world.from_first)
        ]
        yield (
            f"{world.ranks:>5}  {world.first[0]:>12.7g}  {world.first[1]:>12.7g}  "
            f"{world.last[0]:>12.7g}  {world.last[1]:>12.7g}  "
            + "  ".join(f"{text:>8}" for text in apart)
        )


def _gates(report: Report, columns: int) -> Iterator[str]:
    gates = report.gates
    width = max(len(shown.line(gate.title)) for gate in gates)
    indent = " " * (width + 8)
    part = ""
    for gate in gates:
        if gate.part != part:
            part = gate.part
            yield f"{part or 'structure'}:"
        head = f"{shown.line(gate.title):<{width}}  {gate.status.value.upper():<4}  "
        measured = ""
        if gate.measured is not None and gate.allowed is not None:
            measured = f"{short(gate.measured)} of {short(gate.allowed)} allowed"
        if gate.status is Status.PASS:
            yield from _wrapped(columns, head, "; ".join(filter(None, (gate.says, measured))))
            continue
        yield from _wrapped(columns, head, gate.says)
        if measured:
            noise = f"; noise alone {short(gate.twin)}" if gate.twin is not None else ""
            yield f"{indent}{measured}{noise}"
        for detail in gate.details:
            yield from _wrapped(columns, indent, detail)
        if report.points_at(gate):
            yield from _wrapped(columns, f"{indent}points at: ", report.points_at(gate))


def _ending(role: str, ending: Ending, columns: int) -> Iterator[str]:
    if not ending.says:
        return
    yield ""
    yield from _wrapped(columns, f"{role}{blamed_rank(ending)}: ", ending.says)
    for line in traceback_lines(ending, indent="  ", most=6):
        yield f"  {shown.line(line)}"


def _wrapped(columns: int, head: str, text: str, indent: int | None = None) -> Iterator[str]:
    """``text`` behind ``head``; further lines are indented like it, or by ``indent``."""
    margin = " " * (len(head) if indent is None else indent)
    yield from textwrap.wrap(
        text,
        width=columns,
        initial_indent=head,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [head.rstrip()]
