"""Markdown for the comment on a pull request or a job's summary: totals, files, what is for you.

Nothing of the source comes out as markup, and nobody is mentioned. GitHub cuts comments off at
65,536 characters, so long tables end early and say so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from fsdp_migrate import shown as printable
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.report.event import Coverage, Event, Remark, Summary, by_file
from fsdp_migrate.report.text import (
    counts,
    headline,
    open_lines,
    plural,
    problem_lines,
    remarks,
    sentence,
    title,
)

ROOM = 60_000  # characters in all
SHARE = 16_000  # and in one table
CELL = 400

_MARKUP = re.compile(r"([\\`*_\[\]<>|#~$&])")
_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
    rf"{printable.INVISIBLE}]"
)


def render(found: list[Event], total: Summary) -> str:
    lines: list[str] = []
    for part in _parts(found, total):
        if sum(map(len, lines)) + sum(map(len, part)) > ROOM:
            lines += ["", "More in the full report: `fsdp-migrate check`."]
            break
        lines += part
    return "\n".join(lines) + "\n"


def _parts(found: Sequence[Event], total: Summary) -> Iterator[list[str]]:
    yield list(_totals(found, total))
    left = [e for e in found if e.outcome is Outcome.LEFT and not e.ignored]
    causes = [e for e in left if not e.held]
    if causes:
        heads = ("place", "rule", "why", "next step")
        yield section("Left for you", heads, [_row(e) for e in causes])
    held = [e for e in left if e.held]
    if held:
        yield _briefly(held, "held back: settle what is left, and they go with it")
    review = [e for e in found if e.outcome is Outcome.REVIEW and not e.ignored]
    if review:
        heads = ("place", "rule", "becomes", "what may differ")
        yield section("To review", heads, [_row(e) for e in review])
    for title_, wrong in (("Hazards", total.hazards), ("Perhaps hazards", total.possible)):
        if wrong:
            heads = ("place", "rule", "what is wrong", "what to write")
            yield section(title_, heads, [_hazard(each) for each in wrong])
    told = [r for r in remarks(total) if not r.is_hazard]
    if told:
        rows = [(_place(r), r.code, text(r.message)) for r in told]
        yield section("Comments in the code", ("place", "rule", "what"), rows)
    ignored = [e for e in found if e.ignored]
    if ignored:
        yield _briefly(ignored, "ignored")


def _totals(found: Sequence[Event], total: Summary) -> Iterator[str]:
    yield f"## fsdp-migrate: {title(total)}"
    yield ""
    if not total.sites:
        read = f"{total.files} {plural('file', total.files)} read"
        yield f"{sentence(counts(total)) if total.problems else read}."
    else:
        yield from table(
            ("", "sites", "to rewrite", "to review", "left", "ignored", "migrated"),
            [
                ("**all**", *_numbers(total)),
                *((code(path), *_numbers(own)) for path, own in by_file(found).items()),
            ],
            words=1,
        )
    yield from quoted(problem_lines(total), "**Error**: ")
    yield from quoted(total.notes if total.sites else ())
    yield from quoted(open_lines(total))
    if (total.rewritten or total.review) and total.rewrite:
        yield ""
        yield f"Next: {code(total.rewrite)}"


def _numbers(own: Coverage) -> tuple[str, ...]:
    numbers = (own.sites, own.rewritten, own.review, own.for_you, own.ignored)
    return (*map(str, numbers), f"{own.percent} %" if own.counted else "")


def section(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["", f"### {title}", "", *table(heads, rows)]


def _briefly(found: Sequence[Event], told: str) -> list[str]:
    rows = [(_place(e), code(e.construct.shown), text(e.message)) for e in found]
    number = f"{len(found)} {plural('site', len(found))}"
    return folded(f"{number} {told}", table(("place", "what", "why"), rows))


def quoted(lines: Iterable[str], begin: str = "") -> Iterator[str]:
    """What is told about a run, each line as a quotation of its own."""
    for line in lines:
        yield from ("", f"> {begin}{text(line)}")


def folded(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"<details><summary>{title}</summary>", "", *lines, "", "</details>"]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], words: int = 0) -> list[str]:
    """A table; all but the first ``words`` columns are numbers, unless ``words`` is 0."""
    aligned = ["--:" if words and n >= words else "---" for n in range(len(heads))]
    lines = [f"| {' | '.join(heads)} |", f"|{'|'.join(aligned)}|"]
    size = 0
    for number, row in enumerate(rows):
        line = f"| {' | '.join(row)} |"
        size += len(line) + 1
        if size > SHARE:
            lines.append(f"| {len(rows) - number} more {'| ' * (len(heads) - 1)}|")
            break
        lines.append(line)
    return lines


def _row(event: Event) -> tuple[str, str, str, str]:
    return _place(event), event.code, text(headline(event)), text(sentence(event.help))


def _hazard(of: Remark) -> tuple[str, str, str, str]:
    mended = " (rewrite --hazards does it)" if of.edits else ""
    return _place(of), of.code, text(of.message), text(f"{sentence(of.help)}{mended}")


def _place(of: Event | Remark) -> str:
    return code(of.where)


def text(value: str, most: int = CELL) -> str:
    """A text as the same text in a table's cell: no markup, no link, no mention."""
    cut = f"{value[:most]}..." if len(value) > most else value
    escaped = _MARKUP.sub(r"\\\1", _visible(cut))
    # A backslash keeps GitHub neither from mentioning people nor from linking addresses.
    for link in ("@", "://", "www."):
        escaped = escaped.replace(link, f"{link[0]}<!-- -->{link[1:]}")
    return escaped


def code(value: str) -> str:
    """A text as code in a table's cell."""
    shown_ = _visible(value)
    if "\\|" in shown_:
        return text(value)  # some readers would end the cell there, and the code with it
    shown_ = shown_.replace("|", "\\|")
    longest = max(map(len, re.findall("`+", shown_)), default=0)
    if not longest:
        return f"`{shown_}`"
    fence = "`" * (longest + 1)
    return f"{fence} {shown_} {fence}"


def _visible(value: str) -> str:
    """Line ends as spaces, and what does not show, or turns text around, by its number."""
    joined = " ".join(value.split())
    return _CONTROL.sub(lambda m: printable.number(m[0]), joined)
