"""The report as one HTML page: charts and tables, no script, nothing loaded from anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fsdp_migrate.report.page import one_line, page, text
from fsdp_migrate.verify.compare.gate import Gate, Status
from fsdp_migrate.verify.compare.gates.training import Row
from fsdp_migrate.verify.launch.ending import Ending
from fsdp_migrate.verify.report.cells import (
    STEPS,
    blamed_rank,
    gate_numbers,
    remark_lists,
    short,
    step_cells,
    traceback_lines,
    world_cells,
)
from fsdp_migrate.verify.report.chart import Band, Chart, Line
from fsdp_migrate.verify.report.model import Report

_KINDS = ("good", "bad", "open")


def render(report: Report) -> str:
    """The page."""
    title = f"{report.word}: {report.program}"
    return page(title, str(__package__), "\n".join(body(report)))


def body(report: Report) -> Iterator[str]:
    """The lines of what the page shows."""
    yield f'<header class="{_KINDS[report.exit_code]}">'
    yield f'<h1><span class="chip">{report.word}</span>{text(report.title)}</h1>'
    yield f'<p class="lead">{text(report.says)}</p>'
    first = report.first_failure
    if first is not None and first.hint:
        yield f'<p class="hint">Look at: {text(first.hint)}</p>'
    if first is not None and report.points_at(first):
        yield f'<p class="hint">Points at: {text(report.points_at(first))}</p>'
    if report.caveat:
        yield f'<p class="hint">But: {text(report.caveat)}</p>'
    if report.limits:
        yield f'<p class="limits">Not checked: {text("; ".join(report.limits))}</p>'
    yield "<dl>"
    for name, value in (
        ("program", report.program),
        ("before", report.before),
        ("after", report.after),
        ("setting", report.setting),
    ):
        yield f"<dt>{name}</dt><dd>{one_line(value)}</dd>"
    yield "</dl></header>"
    for role, ending in report.endings.items():
        yield from _ending(role, ending)
    if report.rows:
        yield from _charts(report.rows)
    if report.worlds:
        yield "<h2>Numbers of ranks</h2>"
        losses = ("first loss", "after", "last loss", "after")
        yield _table(
            ("ranks", *losses, "apart", "parameters", "to the first"),
            [world_cells(world) for world in report.worlds],
        )
    if report.gates:
        yield f"<h2>{len(report.gates)} checks</h2>"
        yield from _gates(report, first)
    if report.parameters:
        yield "<h2>Parameters closest to their allowance</h2>"
        yield _table(
            ("parameter", "apart", "allowed", "noise alone"),
            [(p.name, *map(short, (p.measured, p.allowed, p.twin))) for p in report.parameters],
        )
    yield from _resources(report)
    if report.rows:
        yield "<h2>Steps</h2>"
        yield _table(STEPS, [step_cells(row) for row in report.rows])
    for title, items in remark_lists(report):
        if items == report.limits:  # said at the top
            continue
        yield f"<h2>{title}</h2><ul>"
        yield from (f"<li>{text(item)}</li>" for item in items)
        yield "</ul>"
    facts = ", ".join(f"{name} {value}" for name, value in report.facts.items() if value != [])
    yield f"<footer>{text(facts)}; took {report.seconds:.0f} s</footer>"


def _charts(rows: Sequence[Row]) -> Iterator[str]:
    steps = [row.step for row in rows]
    noisy = any(row.twin is not None for row in rows)
    band = Band(
        "original under rounding-size noise",
        "noise",
        [row.before - (row.twin or 0.0) for row in rows],
        [row.before + (row.twin or 0.0) for row in rows],
    )
    losses = Chart(
        steps,
        [
            Line("original", "before", [row.before for row in rows]),
            Line("migrated", "after", [row.after for row in rows]),
        ],
        [band] if noisy else [],
        log=False,
    )
    yield '<h2>Loss</h2><div class="card">'
    yield losses.legend() + losses.svg("loss of both versions over the steps")
    yield "</div>"

    def relative(row: Row, value: float | None) -> float | None:
        return value / abs(row.before) if value is not None and row.before else None

    lines = [
        Line("migrated", "after", [relative(row, row.difference) for row in rows]),
        Line("allowed", "allowed", [relative(row, row.allowed) for row in rows]),
    ]
    if noisy:
        lines.append(Line("noise alone", "twin", [relative(row, row.twin) for row in rows]))
    apart = Chart(steps, lines, log=True)
    yield '<h2>Relative difference of the loss</h2><div class="card">'
    yield apart.legend() + apart.svg("relative difference of the loss over the steps")
    equal = sum(row.difference == 0 for row in rows)
    if equal:
        yield f"<small>Equal in all bits, and so not drawn: {equal} of {len(rows)} steps.</small>"
    yield "</div>"


def _gates(report: Report, cause: Gate | None) -> Iterator[str]:
    """The table of checks, in which the cause stands out from what failed after it."""
    yield '<div class="card"><table>'
    yield (
        '<tr><th>check</th><th></th><th>result</th><th class="n">measured</th>'
        '<th class="n">allowed</th><th class="n">noise</th></tr>'
    )
    part = ""
    for gate in report.gates:
        if gate.part != part:
            part = gate.part
            yield f'<tr class="part"><td colspan="6">{text(part or "structure")}</td></tr>'
        details = "".join(f"<small>{text(detail)}</small>" for detail in gate.details)
        hint = f"<small>Look at: {text(gate.hint)}</small>" if gate.hint else ""
        points_at = report.points_at(gate)
        hint += f"<small>Points at: {text(points_at)}</small>" if points_at else ""
        shown = details + hint if gate.status is not Status.PASS else ""
        status = kind = gate.status.value
        if gate.status is Status.FAIL:
            status, kind = ("cause", "fail") if gate is cause else ("follows", "note")
        numbers = "".join(f'<td class="n">{number}</td>' for number in gate_numbers(gate))
        yield (
            f'<tr class="{"cause" if gate is cause else "check"}"><td>{text(gate.title)}</td>'
            f'<td class="{kind}">{status}</td>'
            f"<td>{text(gate.says)}{shown}</td>{numbers}</tr>"
        )
    yield "</table></div>"


def _resources(report: Report) -> Iterator[str]:
    if report.traffic:
        yield "<h2>Collectives in the last step, rank 0</h2>"
        yield _table(
            ("during", "collective", "calls before", "after", "bytes before", "after"),
            [
                (
                    t.phase,
                    f"{t.family}, {t.dtype}",
                    str(t.before[0]),
                    str(t.after[0]),
                    f"{t.before[1]:,}",
                    f"{t.after[1]:,}",
                )
                for t in report.traffic
            ],
            words=2,
        )
    if report.held is not None:
        yield "<h2>Bytes of parameters held</h2>"
        yield _table(
            ("rank", "before", "after"),
            [
                (str(rank), f"{a:,}", f"{b:,}")
                for rank, (a, b) in enumerate(zip(*report.held, strict=True))
            ],
        )


def _ending(role: str, ending: Ending) -> Iterator[str]:
    if not ending.says:
        return
    yield f'<h2>{text(role)}{blamed_rank(ending)}</h2><div class="card">{text(ending.says)}'
    lines = traceback_lines(ending, indent="    ")
    if lines:
        yield "<pre>" + text("\n".join(lines)) + "</pre>"
    yield "</div>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A table whose first ``words`` columns are text and all others numbers."""

    def row(cells: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if n >= words else ''}>{text(cell)}</{tag}>"
            for n, cell in enumerate(cells)
        )

    lines = [f"<tr>{row(heads, 'th')}</tr>", *(f"<tr>{row(cells, 'td')}</tr>" for cells in rows)]
    return f'<div class="card"><table>{"".join(lines)}</table></div>'
