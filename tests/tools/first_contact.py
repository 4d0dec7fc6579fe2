"""The figures of first contact, added up from the tables of its pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "first-contact"
COUNTED = ("sites", "rewritten", "review", "left", "silent", "crashes")
BATCH = re.compile(r"(?ms)^## (\d.*?)\n(.*?)(?=^## |\Z)")
LAST = 8  # repositories, of which the latest figures are given


@dataclass(frozen=True)
class Run:
    """A row of a table: its number, its repository, and what was counted, or nothing where the
    run gave no figures."""

    number: int
    repository: str
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Batch:
    """The runs under one heading of a page."""

    page: Path
    heading: str
    runs: tuple[Run, ...]


def batches() -> Iterator[Batch]:
    """Every batch of first runs, in the order of the pages."""
    for page in sorted(FOLDER.glob("runs-*.md")):
        for heading, text in BATCH.findall(page.read_text(encoding="utf-8")):
            yield Batch(page, heading, tuple(runs(text)))


def runs(text: str) -> Iterator[Run]:
    """The rows of the tables in ``text`` that count sites."""
    wanted: list[int] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| # |"):
            wanted = [cells.index(name) for name in COUNTED if name in cells]
        elif line.startswith("| ") and cells[0].isdecimal():
            counted = [cells[at].replace(",", "") for at in wanted]
            whole = all(cell.isdecimal() for cell in counted)
            yield Run(int(cells[0]), cells[1], tuple(map(int, counted)) if whole else ())


def added(found: list[Run]) -> tuple[int, ...]:
    """Each count over all runs that have figures."""
    return tuple(map(sum, zip(*(run.counts for run in found if run.counts), strict=True)))


def summary() -> str:
    """A table with a row for each batch, what all of them and the last eight gave, and today's."""
    lines = [f"| runs | repositories | {' | '.join(COUNTED)} | rewritten or for review |"]
    lines.append("|---|" + "--:|" * (len(COUNTED) + 2))
    every: list[Run] = []
    for batch in batches():
        every += batch.runs
        link = f"first-contact/{batch.page.name}#{batch.heading.replace(',', '').replace(' ', '-')}"
        lines.append(_row(f"[{batch.heading}]({link})", list(batch.runs)))
    lines += [_row("all", every), _row(f"the last {LAST}", every[-LAST:])]
    none = [f"{run.number} ({run.repository})" for run in every if not run.counts]
    today = list(runs((FOLDER / "today.md").read_text(encoding="utf-8")))
    sites, rewritten, review, left = added(today)
    gone = rewritten + review
    return "\n".join(lines) + (
        f"\n\nWithout figures are {', '.join(none[:-1])} and {none[-1]}:\n"
        f"their first run did not end, or ended with an error. Of {len(today)} that were run again "
        f"later, {gone:,} of {sites:,} sites are\nrewritten or for review today "
        f"({_share(gone, sites)}), and {left:,} left: [today](first-contact/today.md)."
    )


def _row(name: str, found: list[Run]) -> str:
    counts = added(found)
    share = _share(counts[1] + counts[2], counts[0])
    return f"| {name} | {len(found)} | {' | '.join(f'{n:,}' for n in counts)} | {share} |"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %"
