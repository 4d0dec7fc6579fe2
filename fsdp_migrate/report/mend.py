"""What whoever mends a site needs beside its place and its reason, as JSON has it."""

from __future__ import annotations

from fsdp_migrate.planning import pages
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.report import edits
from fsdp_migrate.report.event import Event, Remark, Summary


def is_for_you(event: Event) -> bool:
    """Whether somebody has to judge or to act, as opposed to what is done or stays on purpose."""
    return event.outcome is not Outcome.REWRITTEN and not event.ignored


def of(found: Event | Remark, total: Summary) -> dict[str, object]:
    """``written`` is what `rewrite` puts in the place of the site's lines, ``example`` how its rule
    writes such a site where it can, ``checks`` those of `verify` that decide about it.

    Of a marker that stands in code nothing is to be written: its code is there.
    """
    return {
        "explain": f"fsdp-migrate explain {found.code}",
        "written": _written(found, total) if isinstance(found, Event) else [],
        "example": _example(found.code, total),
        "checks": list(total.checks.get(found.code, ())),
        "verify": "fsdp-migrate verify SCRIPT --before HEAD -o verdict.json",
    }


def _written(event: Event, total: Summary) -> list[dict[str, object]]:
    """The edits of the lines of a site for review, and of those above it, where its marker is; a
    cell's lines are not the file's."""
    if event.outcome is not Outcome.REVIEW or event.cell or event.path not in total.contents:
        return []
    first, last = event.line, event.end_line or event.line
    every = list(edits.edits(*total.contents[event.path]))
    hit = [n for n, each in enumerate(every) if each.line <= last and first <= each.end_line]
    if not hit:
        return []
    # A change may be told in pieces, one of which is only what goes: those beside it belong to it.
    start, stop = hit[0], hit[-1]
    while start and every[start - 1].end_line + 1 >= every[start].line:
        start -= 1
    while stop + 1 < len(every) and every[stop].end_line + 1 >= every[stop + 1].line:
        stop += 1
    return [
        {"line": each.line, "end_line": each.end_line, "text": each.text}
        for each in every[start : stop + 1]
    ]


def _example(code: str, total: Summary) -> dict[str, str] | None:
    """The first example of a rule's page that is not about what is left."""
    page = next((p for p in pages.pages(total.rule_paths) if p.code == code), None)
    if page is None or not pages.has_file(page.path):
        shown = page.example() if page is not None else None
        return {"before": shown[0], "after": shown[1]} if shown is not None else None
    for block in page.blocks[pages.EXAMPLES]:
        if block.facts.get("Outcome") != Outcome.LEFT.value:
            return {"before": block.sources["Before"], "after": block.sources["After"]}
    return None
