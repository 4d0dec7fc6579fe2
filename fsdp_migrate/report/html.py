"""One HTML page: every site with its code, and what ``rewrite`` would change, file by file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from fsdp_migrate import __version__
from fsdp_migrate.planning import pages
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.report.event import Coverage, Event, Remark, Summary, by_file
from fsdp_migrate.report.page import one_line, page, text
from fsdp_migrate.report.text import (
    counts,
    headline,
    plural,
    problem_lines,
    remark,
    remarks,
    sentence,
    title,
)

AROUND = 2  # lines of code before and after a site
MOST = 10  # lines of code of one site
LONGEST = 1000  # characters of a line

_NAMES = {
    "rewritten": "rewritten",
    "review": "to review",
    "left": "left for you",
    "held": "held back",
    "ignored": "ignored",
}
_WORD = re.compile(r"\w+|\s+|.")


def render(found: list[Event], total: Summary) -> str:
    return page(f"fsdp-migrate: {title(total)}", str(__package__), "\n".join(_body(found, total)))


def _body(found: Sequence[Event], total: Summary) -> Iterator[str]:
    yield from _header(found, total)
    numbers = {id(event): number for number, event in enumerate(found, 1)}
    files = by_file(found)
    if files:
        yield from _files(files)
    for heading, of in (("Left for you", "left"), ("To review", "review")):
        chosen = [e for e in found if _kind(e) == of]
        if chosen:
            yield f'<section aria-label="{heading}">\n<h2>{heading}</h2>\n<ul class="list card">'
            yield from (_line(e, numbers[id(e)]) for e in chosen)
            yield "</ul>\n</section>"
    told = remarks(total)
    for heading, of_kind in (
        ("Hazards", total.hazards),
        ("Perhaps hazards", total.possible),
        ("Comments in the code", [r for r in told if not r.is_hazard]),
    ):
        if of_kind:
            yield f'<section aria-label="{heading}">\n<h2>{heading}</h2>\n<ul class="list card">'
            yield from map(_remark, of_kind)
            yield "</ul>\n</section>"
    ids = {path: number for number, path in enumerate(files, 1)}
    for path, own in files.items():
        number = ids[path]
        yield f'<section aria-labelledby="file{number}">'
        yield (
            f'<h2 id="file{number}">{one_line(path)}<small>{own.sites} '
            f"{plural('site', own.sites)}{_share(own)}</small></h2>"
        )
        before, after = total.contents.get(path, ("", ""))
        lines = before.split("\n")
        for event in found:
            if event.path == path:
                yield from _site(event, numbers[id(event)], lines)
        if before != after:
            yield from _diff(before, after, opened=True)
        yield "</section>"
    for path, (before, after) in total.contents.items():
        if path not in files and before != after:
            yield f'<section aria-label="{one_line(path)}">\n<h2>{one_line(path)}'
            yield f"<small>{'changed' if before else 'added'}</small></h2>"
            yield from _diff(before, after, opened=bool(before))
            yield "</section>"
    yield from _rules(found, told, total)
    yield f"<footer>fsdp-migrate {__version__}, {text(_read(total))}</footer>"


def _header(found: Sequence[Event], total: Summary) -> Iterator[str]:
    kind = "bad" if total.problems else "open" if total.for_you else "good"
    yield f'<header class="{kind}">'
    chip = f'<span class="chip">{total.percent} %</span>' if total.counted else ""
    yield f"<h1>{chip}{text(sentence(title(total)))}</h1>"
    said = re.sub(r"\s{2,}.*", "", counts(total)).replace(" rewritten,", " to rewrite,")
    yield f'<p class="lead">{text(said)}</p>'
    if total.sites:
        yield _bar(total)
    for line in problem_lines(total):
        yield f'<p class="lead"><strong>Error:</strong> {one_line(line)}</p>'
    for note in total.notes if total.sites else ():
        yield f'<p class="hint">{text(note)}</p>'
    kinds = {_kind(e) for e in found}
    if kinds:
        yield '<fieldset class="filter"><legend>Show</legend>'
        for name, label in (*_NAMES.items(), ("diff", "changes")):
            if name in kinds or name == "diff":
                yield f'<label><input type="checkbox" id="show-{name}" checked> {label}</label>'
        yield "</fieldset>"
    yield "</header>"


def _files(files: dict[str, Coverage]) -> Iterator[str]:
    yield '<nav aria-label="Files">\n<h2>Files</h2>\n<div class="card"><table>'
    heads = ("sites", "to rewrite", "to review", "left", "ignored", "migrated")
    cells = "".join(f'<th scope="col" class="n">{head}</th>' for head in heads)
    yield f'<thead><tr><th scope="col">file</th>{cells}<th></th></tr></thead>\n<tbody>'
    for number, (path, own) in enumerate(files.items(), 1):
        numbers = (own.sites, own.rewritten, own.review, own.for_you, own.ignored)
        cells = "".join(f'<td class="n">{n}</td>' for n in numbers)
        share = f"{own.percent} %" if own.counted else ""
        yield (
            f'<tr><td><a href="#file{number}">{one_line(path)}</a></td>{cells}'
            f'<td class="n">{share}</td><td>{_bar(own)}</td></tr>'
        )
    yield "</tbody></table></div>\n</nav>"


def _bar(own: Coverage) -> str:
    """The shares as a picture of the numbers that stand beside it."""
    parts = (("rewritten", own.rewritten), ("review", own.review), ("left", own.for_you))
    inner = "".join(f'<span class="{name}" style="flex:{n}"></span>' for name, n in parts if n)
    return f'<div class="bar" aria-hidden="true">{inner}</div>'


def _share(own: Coverage) -> str:
    return f", {own.percent} % migrated" if own.counted else ", all ignored"


def _kind(event: Event) -> str:
    if event.ignored:
        return "ignored"
    return "held" if event.held else event.outcome.value


def _line(event: Event, number: int) -> str:
    next_step = f"<small>{text(sentence(event.help))}</small>" if event.help else ""
    return (
        f'<li><a href="#site{number}">{one_line(event.path)}:{event.line}</a> '
        f"{_rule(event.code)} {text(headline(event))}{next_step}</li>"
    )


def _remark(found: Remark) -> str:
    mended = " (rewrite --hazards does it)" if found.edits else ""
    next_step = f"<small>{text(sentence(found.help))}{mended}</small>" if found.help else ""
    return (
        f"<li>{one_line(found.path)}:{found.line} {_rule(found.code)} {text(remark(found))}"
        f"{next_step}</li>"
    )


def _rule(code: str) -> str:
    return f'<a href="#{text(code)}"><code>{text(code)}</code></a>'


def _site(event: Event, number: int, lines: Sequence[str]) -> Iterator[str]:
    kind = _kind(event)
    yield f'<article class="site card {kind}" id="site{number}">'
    yield (
        f'<h3><span class="tag">{_NAMES[kind]}</span> {_rule(event.code)} '
        f"{text(event.construct.shown)}</h3>"
    )
    yield f'<p class="where">{one_line(event.path)}:{event.line}:{event.column}</p>'
    yield f'<pre class="code">{"".join(_numbered_lines(event, lines))}</pre>'
    arrow = "" if event.outcome is Outcome.LEFT else "&rarr; "
    if event.message:
        yield f'<p class="next">{arrow}{text(event.message)}</p>'
    if event.help:
        word = "May differ" if event.outcome is Outcome.REVIEW else "Next step"
        yield f'<p class="next"><strong>{word}:</strong> {text(sentence(event.help))}</p>'
    yield "</article>"


def _numbered_lines(event: Event, lines: Sequence[str]) -> Iterator[str]:
    """The lines of a site and around it, numbered; without the file, its first line."""
    if not any(lines):
        lines = [*([""] * (event.line - 1)), event.source]
        first = last = end = event.line
    else:
        end = min(max(event.line, event.end_line), event.line + MOST - 1)
        first, last = max(1, event.line - AROUND), min(len(lines), end + AROUND)
    while first < event.line and not lines[first - 1].strip():
        first += 1
    while last > end and not lines[last - 1].strip():
        last -= 1
    for number in range(first, last + 1):
        line = lines[number - 1]
        inside = event.line <= number <= end
        if number == event.line:
            start, stop = event.column - 1, event.column - 1 + event.width
            code = f"{_cut(line[:start])}<mark>{_cut(line[start:stop])}</mark>{_cut(line[stop:])}"
        else:
            code = _cut(line)
        kind = ' class="at"' if inside else ""
        yield f"<span{kind}><i>{number}</i>{code}</span>"


def _cut(line: str) -> str:
    return text(line) if len(line) <= LONGEST else f"{text(line[:LONGEST])}..."


# -- what rewrite changes -------------------------------------------------------------------------


def _diff(before: str, after: str, *, opened: bool) -> Iterator[str]:
    old, new = before.split("\n"), after.split("\n")
    if not before:
        old = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    groups = list(matcher.get_grouped_opcodes(3))
    changes = [code for group in groups for code in group if code[0] != "equal"]
    added = sum(j2 - j1 for _, _, _, j1, j2 in changes)
    cut = sum(i2 - i1 for _, i1, i2, _, _ in changes)
    yield f"<details{' open' if opened else ''}>"
    lines = f"{added} {plural('line', added)} added, {cut} removed"
    yield f"<summary>What rewrite changes: {lines}</summary>"
    yield '<table class="diff card"><caption class="unseen">Changed lines</caption>'
    yield '<colgroup><col><col><col class="sign"><col class="code"></colgroup>'
    yield (
        '<thead class="unseen"><tr><th>line before</th><th>line after</th><th>change</th>'
        "<th>code</th></tr></thead>\n<tbody>"
    )
    for number, group in enumerate(groups):
        if number:
            yield '<tr class="gap"><td colspan="4">&#8943;</td></tr>'
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                for i, j in zip(range(i1, i2), range(j1, j2), strict=True):
                    yield _row(i + 1, j + 1, " ", _cut(old[i]))
                continue
            told = [_parts(a, b) for a, b in zip(old[i1:i2], new[j1:j2], strict=False)]
            for n in range(i1, i2):
                known = n - i1 < len(told)
                yield _row(n + 1, 0, "-", told[n - i1][0] if known else _cut(old[n]))
            for n in range(j1, j2):
                known = n - j1 < len(told)
                yield _row(0, n + 1, "+", told[n - j1][1] if known else _cut(new[n]))
    yield "</tbody></table></details>"


def _row(before: int, after: int, sign: str, code: str) -> str:
    kind = {"+": ' class="add"', "-": ' class="cut"'}.get(sign, "")
    first, second = (str(n) if n else "" for n in (before, after))
    return (
        f'<tr{kind}><td class="no">{first}</td><td class="no">{second}</td>'
        f'<td class="sign">{sign.strip()}</td><td>{code}</td></tr>'
    )


def _parts(before: str, after: str) -> tuple[str, str]:
    """Two lines with what differs marked, where they are much the same."""
    if max(len(before), len(after)) > LONGEST:
        return _cut(before), _cut(after)
    old, new = _WORD.findall(before), _WORD.findall(after)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    if matcher.ratio() < 0.5:
        return text(before), text(after)
    first = second = ""
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        cut, added = text("".join(old[i1:i2])), text("".join(new[j1:j2]))
        same = tag == "equal"
        first += cut if same or not cut else f"<del>{cut}</del>"
        second += added if same or not added else f"<ins>{added}</ins>"
    return first, second


# -- the rest -------------------------------------------------------------------------------------


def _rules(found: Sequence[Event], told: Sequence[Remark], total: Summary) -> Iterator[str]:
    codes = sorted({e.code for e in found} | {r.code for r in told})
    if not codes:
        return
    known = {p.code: p.summary for p in pages.pages(total.rule_paths)}
    yield '<section aria-label="Rules">\n<h2>Rules</h2>\n<ul class="list card">'
    for code in codes:
        summary = text(known.get(code, ""))
        yield f'<li id="{text(code)}"><code>{text(code)}</code> {summary}</li>'
    yield "</ul>\n<p class=hint>The whole page of a rule: fsdp-migrate explain CODE</p>\n</section>"


def _read(total: Summary) -> str:
    return f"{total.files} {plural('file', total.files)} read"
