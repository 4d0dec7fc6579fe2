"""The report as plain text for a terminal or a log: no colour, no markup, lines below 100 columns
except where a name is longer."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from fsdp_migrate.verify.compare.gate import Gate, Status
from fsdp_migrate.verify.compare.gates.training import Row
from fsdp_migrate.verify.launch.outcome import Outcome
from fsdp_migrate.verify.report.model import Report, Verdict

_WIDTH = 98
_MOST_ROWS = 12

_TITLES = {
    Verdict.SAME: "same training",
    Verdict.DIFFERENT: "different training",
    Verdict.BEFORE_FAILED: "the original does not run",
    Verdict.AFTER_FAILED: "the migrated program crashes",
    Verdict.AFTER_HUNG: "the migrated program hangs",
    Verdict.INCONCLUSIVE: "inconclusive",
}


def render(report: Report) -> str:
    """The whole screen, ending in a newline."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield f"before  {report.program} in {report.before}"
    yield f"after   {report.program} in {report.after}"
    if report.setting:
        yield report.setting
    if report.rows:
        yield ""
        yield from _table(report.rows)
    if report.gates:
        yield ""
        yield from _gates(report.gates)
    for role, outcome in report.outcomes.items():
        yield from _outcome(role, outcome)
    yield from _list("expected differences", report.expected)
    yield from _list("patched to run here", report.patches)
    yield from _list("notes", report.notes)
    yield from _list("not checked", report.limits)
    yield ""
    yield from _wrapped(f"VERDICT  {_TITLES[report.verdict]}: ", report.says)
    first = report.first_failure
    if first is not None and first.hint:
        yield from _wrapped("         look at: ", first.hint)
    if report.kept:
        yield f"         records: {report.kept}"


def _table(rows: tuple[Row, ...]) -> Iterator[str]:
    """First, last, and the steps between as far as there is room; the worst is always shown."""
    shown = set(range(len(rows)))
    if len(rows) > _MOST_ROWS:
        share = [row.difference / row.allowed if row.allowed else 0.0 for row in rows]
        worst = share.index(max(share))
        shown = {*range(_MOST_ROWS - 4), len(rows) - 2, len(rows) - 1, worst}
    yield f"{'step':>4}  {'loss before':>14}  {'loss after':>14}  {'|diff|':>9}  {'allowed':>9}"
    gap = False
    for n, row in enumerate(rows):
        if n in shown:
            mark = "" if row.difference <= row.allowed else "  <"
            yield (
                f"{row.step:>4}  {row.before:>14.7g}  {row.after:>14.7g}  "
                f"{row.difference:>9.1e}  {row.allowed:>9.1e}{mark}"
            )
            gap = False
        elif not gap:
            yield " ..."
            gap = True


def _gates(gates: tuple[Gate, ...]) -> Iterator[str]:
    width = max(len(gate.title) for gate in gates)
    indent = " " * (width + 8)
    for gate in gates:
        head = f"{gate.title:<{width}}  {gate.status.value.upper():<4}  "
        yield from _wrapped(head, gate.says)
        if gate.measured is not None and gate.allowed is not None:
            noise = f", noise alone {gate.twin:.1e}" if gate.twin is not None else ""
            yield f"{indent}{gate.measured:.1e}, allowed {gate.allowed:.1e}{noise}"
        if gate.status is not Status.PASS:
            for detail in gate.details:
                yield from _wrapped(indent, detail)


def _outcome(role: str, outcome: Outcome) -> Iterator[str]:
    if not outcome.says:
        return
    yield ""
    rank = f", rank {outcome.failed_rank}" if outcome.failed_rank is not None else ""
    yield from _wrapped(f"{role}{rank}: ", outcome.says)
    for line in outcome.traceback:
        if line != outcome.says:
            yield f"  {line}"
    for trace in outcome.ranks:
        yield f"  rank {trace.rank} {trace.last}"
        for frame in trace.stack[-6:]:
            yield f"    {frame}"


def _list(title: str, items: tuple[str, ...]) -> Iterator[str]:
    if items:
        yield ""
        yield title
        for item in items:
            yield from _wrapped("  - ", item)


def _wrapped(head: str, text: str) -> Iterator[str]:
    lines = textwrap.wrap(
        text,
        width=max(40, _WIDTH - len(head)),
        break_long_words=False,
        break_on_hyphens=False,
    )
    yield head + (lines[0] if lines else "")
    for line in lines[1:]:
        yield " " * len(head) + line
