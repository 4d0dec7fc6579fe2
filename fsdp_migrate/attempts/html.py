"""What came of a search as one HTML page: the attempts, and the reports of the one that decides.

The page loads and runs nothing, like that of ``verify``, whose look it has.
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_migrate.attempts.report import Migration, what_was_tried
from fsdp_migrate.report.page import page, text
from fsdp_migrate.verify import report as verification
from fsdp_migrate.verify.report import html
from fsdp_migrate.verify.report.model import Report


def render(migration: Migration) -> str:
    """The page."""
    body = "\n".join(_body(migration))
    return page(f"migrate: {migration.title}", verification.__name__, body)


def _body(migration: Migration) -> Iterator[str]:
    yield from _head(migration)
    yield "<h2>Attempts</h2>"
    yield from _attempts(migration)
    left = {migration.titles[unit]: why for unit, why in migration.left.items()}
    for title, others in (("Left as it was", left), ("In another form", migration.taken)):
        if others:
            yield f'<h2>{title}</h2><div class="card"><table>'
            for what, why in others.items():
                yield f"<tr><td>{text(what)}</td><td>{text(why)}</td></tr>"
            yield "</table></div>"
    yield from _listed("Rests on the code alone, for no program came by", migration.not_executed)
    yield from _listed("Seen in the run, not known from the code", migration.seen)
    yield from _listed("Not accounted for", migration.unseen)
    yield from _listed("Written", migration.written)
    yield from _listed("Notes", migration.notes)
    for number, report in _decisive(migration):
        title = f"attempt {number}: {report.program}"
        yield f"<details><summary>{text(title)}, as verify reports it</summary>"
        yield from html.body(report)
        yield "</details>"
    yield f"<footer>took {migration.seconds:.0f} s</footer>"


def _head(migration: Migration) -> Iterator[str]:
    best, search = migration.best, migration.search
    kind, word = ("good", "MIGRATED") if best is not None else ("open", "NOT MIGRATED")
    if best is not None and (migration.left or search.stopped):
        kind = "open"
    yield f'<header class="{kind}">'
    yield f'<h1><span class="chip">{word}</span>{text(migration.title)}</h1>'
    yield f'<p class="lead">Trained before and after: {text(", ".join(migration.programs))}</p>'
    if search.stopped:
        yield f'<p class="hint">The search ended early: {text(search.stopped)}</p>'
    yield "</header>"


def _attempts(migration: Migration) -> Iterator[str]:
    yield '<div class="card"><table>'
    yield '<tr><th>attempt</th><th>what</th><th></th><th>answer</th><th class="n">s</th></tr>'
    for number, attempt in enumerate(migration.search.attempts, 1):
        what = text(what_was_tried(attempt, migration.titles))
        why = f"<small>{text(attempt.why)}</small>" if attempt.why else ""
        report = attempt.report
        word, said = ("", "that is the original itself")
        if report is not None:
            word, said = report.word, f"{report.title}: {report.says}"
        kind = "pass" if attempt.passes else "fail"
        mark = " (taken)" if attempt is migration.best else ""
        yield (
            f"<tr><td>{number}{mark}</td><td>{what}{why}</td>"
            f'<td class="{kind}">{text(word)}</td><td>{text(said)}</td>'
            f'<td class="n">{attempt.seconds:.0f}</td></tr>'
        )
    yield "</table></div>"


def _decisive(migration: Migration) -> Iterator[tuple[int, Report]]:
    """The reports of the attempt that was taken, or of the first one where none was."""
    attempts = migration.search.attempts
    chosen = migration.best or (attempts[0] if attempts else None)
    if chosen is not None:
        yield from ((attempts.index(chosen) + 1, report) for report in chosen.reports)


def _listed(title: str, items: tuple[str, ...]) -> Iterator[str]:
    if items:
        yield f"<h2>{title}</h2><ul>"
        yield from (f"<li>{text(item)}</li>" for item in items)
        yield "</ul>"
