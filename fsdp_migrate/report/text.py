"""Plain text for people: ruff's layout for ``check``, one line a site for the rest."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from fsdp_migrate import shown as printable
from fsdp_migrate.discovery.configuration_files import is_configuration
from fsdp_migrate.discovery.walk import SUFFIXES
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.report.event import Event, Remark, Summary, by_file

SHOWN = 3  # places that are named for one reason
LONGEST = 200  # characters of a source line that are shown
VERBS = {Outcome.REWRITTEN: "rewrote", Outcome.REVIEW: "review", Outcome.LEFT: "left"}


def concise(found: list[Event], total: Summary) -> str:
    """``path:line:col: CODE [*] what`` (``[*]``: ``rewrite`` does it; ``[review]``: it does, and
    something is to be judged; ``[note]``: perhaps nothing is wrong), in notebooks
    ``path:cell n:line:col:``."""
    lines = [f"{e.place}: {e.code} {_star(e)}{headline(e)}" for e in found if not e.ignored]
    lines += [f"{r.place}: {r.code} {_star(r)}{remark(r)}" for r in remarks(total)]
    return "\n".join([*lines, *closing(found, total)]) + "\n"


def full(found: list[Event], total: Summary) -> str:
    """Every site with its source line, what it becomes, and what remains to be done; ruff's
    layout. What is ignored is only counted."""
    blocks = ["\n".join(block(e)) for e in found if not e.ignored]
    blocks += ["\n".join(block(r)) for r in remarks(total)]
    shares = coverage_lines(found)
    if shares:
        blocks.append("\n".join(shares))
    return "\n\n".join([*blocks, "\n".join(closing(found, total))]) + "\n"


def coverage_lines(found: list[Event]) -> list[str]:
    """The share of every file's sites that can be rewritten, where there are several files."""
    files = by_file(found)
    if len(files) < 2:
        return []
    width = max(map(len, files))
    digits = max(len(str(c.counted)) for c in files.values())
    lines = []
    for path, own in files.items():
        share = f"{own.rewritten + own.review:>{digits}} of {own.counted:>{digits}}"
        ignored = f"  {own.ignored} ignored" if own.ignored else ""
        percent = f"{own.percent:>5} %" if own.counted else f"{'':>7}"
        lines.append(f"{path:<{width}}  {share}  {percent}{ignored}")
    return lines


def remarks(total: Summary) -> list[Remark]:
    """What to tell of beside sites: hazards, and comments; of markers those whose site is not
    reported itself."""
    markers = (m for m in total.markers if not m.listed)
    return [*total.hazards, *total.possible, *total.unused, *markers]


def remark(found: Remark) -> str:
    return found.message if found.help else f"marker: {found.message}"


def block(event: Event | Remark) -> list[str]:
    """One site, or what is none, in ruff's layout."""
    if isinstance(event, Remark):
        return _block(event, f"{_star(event)}{remark(event)}", "help")
    word = "note" if event.outcome is Outcome.REVIEW else "help"
    return _block(event, f"{_star(event)}{headline(event)}", word)


def _block(event: Event | Remark, said: str, word: str) -> list[str]:
    number = str(event.line)
    gutter = " " * len(number)
    source, column, width = excerpt(event)
    lines = [
        f"{event.code} {said}",
        f"{gutter}--> {event.place}",
        f"{gutter} |",
        f"{number} | {source}",
        f"{gutter} | {' ' * column}{'^' * width}",
    ]
    if event.help:
        lines += [f"{gutter} |", f"{gutter} = {word}: {event.help}"]
    return lines


def excerpt(event: Event | Remark) -> tuple[str, int, int]:
    """The source line, or what of a very long one matters; where the site begins in it, and how
    wide it is there."""
    source, column = event.source.expandtabs(1), event.column - 1
    start = max(0, column - LONGEST // 4) if len(source) > LONGEST else 0
    cut = "..." if start else ""
    more = "..." if start + LONGEST < len(source) else ""
    end = min(start + LONGEST, len(source)) if more else len(source)
    before, site, after = (
        printable.line(source[first:last])
        for first, last in (
            (start, column),
            (column, min(column + event.width, end)),
            (min(column + event.width, end), end),
        )
    )
    return f"{cut}{before}{site}{after}{more}", len(cut) + len(before), max(1, len(site))


def headline(event: Event) -> str:
    name = event.construct.shown
    if event.outcome is Outcome.LEFT:
        return f"{name}: {event.message}"
    return f"{name} -> {event.message}" if event.message else name


def rewrite_lines(found: list[Event], *, every: bool, columns: int = 0) -> list[str]:
    """One line a site: code, verb, place, message; the next step below what needs a human, once
    below several in a row that have the same. See :func:`_table` for ``columns``."""
    chosen = [e for e in found if every or not (e.ignored or e.outcome is Outcome.REWRITTEN)]
    following = [*(e.help for e in chosen), ""][1:]
    rows = []
    for event, next_help in zip(chosen, following, strict=True):
        said = event.help if not event.held and event.help != next_help else ""
        rows.append((event.code, VERBS[event.outcome], event.place, headline(event), said))
    return _table(rows, columns)


def hazard_lines(total: Summary, *, columns: int = 0) -> list[str]:
    """One line a hazard: what was put right, and what is left with what to write below it."""
    rows = []
    for each in total.hazards:
        verb = "mended" if each.is_mended else VERBS[Outcome.LEFT]
        below = "" if each.is_mended else each.help
        rows.append((each.code, verb, each.place, each.message, below))
    return _table(rows, columns)


def requirement_lines(total: Summary, *, columns: int = 0) -> list[str]:
    """What was raised, or is too low and left, of what the project requires of torch."""
    rows = []
    for each in total.requirements:
        verb = VERBS[Outcome.REWRITTEN if each.done else Outcome.LEFT]
        rows.append((each.code, verb, each.place, each.message, each.help))
    return _table(rows, columns)


def _table(rows: Sequence[tuple[str, str, str, str, str]], columns: int) -> list[str]:
    """Rows of code, verb, place, message and what stands below it, which may be nothing.

    A terminal of fewer ``columns`` than it takes would break each message in the middle of a word
    below the codes: there the messages have lines of their own. 0 means any number.
    """
    width = max((len(row[2]) for row in rows), default=0)
    table, stacked = [], []
    for code, verb, place, message, below in rows:
        table.append(f"{code}  {verb:<7}  {place:<{width}}  {message}")
        stacked += [f"{code}  {verb:<7}  {place}", f"{'':9}{message}"]
        if below:
            table.append(f"{'':>{18 + width}}  {below}")
            stacked.append(f"{'':11}{below}")
    return stacked if 0 < columns < max(map(len, table), default=0) else table


def guard_lines(found: Sequence[Event]) -> list[str]:
    """Which models were migrated in part, and where their guards stand."""
    guards: dict[tuple[str, ...], list[str]] = {}
    for event in found:
        if event.models:
            guards.setdefault(event.models, []).append(event.where)
    return [
        f"migrated in part: {plural('the model', len(models))} made at {_listed(models)}; it "
        f"raises at {_listed(places)}"
        for models, places in guards.items()
    ]


def _listed(places: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(dict.fromkeys(places[:most]))
    return shown if len(places) <= most else f"{shown} and {len(places) - most} more"


def problem_lines(total: Summary) -> list[str]:
    lines = []
    for problem in total.problems:
        where = problem.place
        whose = " (this is a defect of fsdp-migrate, please report it)" if problem.ours else ""
        lines.append(f"{where}: {problem.message}{whose}")
    return lines


def files(total: Summary) -> list[str]:
    """What happened to files, in one line."""
    parts = []
    if total.changed:
        parts.append(f"{len(total.changed)} {plural('file', len(total.changed))} changed")
    if total.created:
        parts.append(f"{', '.join(total.created)} added")
    untouched = total.files - sum(map(_is_read, total.changed))
    if parts and untouched > 0:
        parts.append(f"{untouched} untouched")
    return [f"{', '.join(parts)}{f'{total.seconds:.1f} s':>10}"] if parts else []


def _is_read(name: str) -> bool:
    """Whether a file is one of those that runs look for."""
    return name.endswith(SUFFIXES) or is_configuration(name.rpartition("/")[2])


def counts(total: Summary) -> str:
    if not total.sites:
        if any(problem.ours for problem in total.problems):
            return "the analysis failed: it is not known what there is of FSDP1"
        if total.problems:
            unread = len({problem.display for problem in total.problems})
            rest = max(0, total.files - unread)
            return (
                f"{unread} {plural('file', unread)} could not be read: it is not known what there "
                f"is of FSDP1; none was found in {rest} other {plural('file', rest)}"
            )
        others = f": {_listed(total.look_alikes)}, not torch's FSDP" if total.look_alikes else ""
        found = f"no FSDP1 found in {total.files} {plural('file', total.files)}{others}"
        return f"{found}; {hazards(total)}" if total.hazards else found
    ignored = f", {total.ignored} ignored" if total.ignored else ""
    return (
        f"{total.sites} {plural('site', total.sites)}: {total.rewritten} rewritten, "
        f"{total.review} to review, {total.for_you} left for you{ignored}"
        + (f"     {total.percent} % migrated" if total.counted else "")
    )


def hazards(total: Summary) -> str:
    """How many hazards there are."""
    number, mended = len(total.hazards), sum(h.is_mended for h in total.hazards)
    told = f"{number} {plural('hazard', number)} in code that uses FSDP2"
    return f"{told}, {mended} mended" if mended else told


def to_do(total: Summary) -> str:
    """The same before anything is done."""
    return counts(total).replace("rewritten,", "to rewrite,")


def title(total: Summary) -> str:
    """The whole report in one line."""
    if not total.sites:
        if any(problem.ours for problem in total.problems):
            return "the analysis failed"
        if total.problems:
            return "not all files could be read"
        found = hazards(total) if total.hazards else "no FSDP1 found"
        return "; ".join([found, *settle(total)])
    if not total.counted:
        return "all of FSDP1 is ignored"
    return f"{total.percent} % of FSDP1 can be migrated"


def closing(found: Sequence[Event], total: Summary) -> list[str]:
    """The last lines of ``check``."""
    lines = [to_do(total)]
    if total.hazards and total.sites:
        lines.append(hazards(total))
    if total.untold:
        places = f"{total.untold} {plural('place', total.untold)}"
        lines.append(f"{places} may be wrong in code that uses FSDP2: --notes tells of them")
    lines += [*settle(total), *open_lines(total)]
    if not total.rewrite:  # it stands in no file
        return lines
    if total.rewritten or total.review:
        lines.append(f"Next: {total.rewrite}")
    elif any(hazard.edits for hazard in total.hazards):
        lines.append(f"Next: {total.rewrite} --hazards")
    elif own := next(iter((*filter(is_for_you, found), *total.hazards)), None):
        lines.append(f"Next: fsdp-migrate explain {shlex.quote(own.where)}")
    return lines


def settle(total: Summary) -> list[str]:
    """How many markers stand in code."""
    number = len(total.markers)
    said = f"{number} {plural('marker', number)} in the code to settle and remove"
    return [said] if number else []


def is_for_you(event: Event) -> bool:
    """Whether a site is left for a reason of its own."""
    return event.outcome is Outcome.LEFT and not (event.ignored or event.held)


def open_lines(total: Summary) -> list[str]:
    """What sites are held back by, and what may be models and was not looked at."""
    return [*held_back_lines(total), *not_followed_lines(total)]


def held_back_lines(total: Summary) -> list[str]:
    """How many sites wait for which places, those first that free most."""
    lines = []
    for held in total.held_back[:SHOWN]:
        way_out = "settle " + ("it" if len(held.places) == 1 else "them all")
        if held.is_stoppable:
            way_out += "; with --partial they are migrated, and the program stops there"
        sites = f"{held.sites} {plural('site', held.sites)}"
        lines.append(f"Held back: {sites} by {_some(held.places)}; {way_out}")
        if held.links:
            lines.append(
                f"  What links their models, so that they go together: {_some(held.links)}"
            )
    return lines


def not_followed_lines(total: Summary) -> list[str]:
    """What may be models and was not looked at, with the places that use it."""
    places: dict[str, list[str]] = {}
    for each in total.not_followed:
        places.setdefault(each.why, []).append(each.place)
    return [f"{sentence(why)}: see {_some(where)}" for why, where in places.items()]


def _some(places: Sequence[str]) -> str:
    """The first few places, and how many more there are."""
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    return ", ".join(places[:SHOWN]) + more


def _star(event: Event | Remark) -> str:
    if isinstance(event, Remark):
        return "[note] " if event.is_note else "[*] " if event.edits else ""
    return {Outcome.REWRITTEN: "[*] ", Outcome.REVIEW: "[review] "}.get(event.outcome, "")


def plural(word: str, number: int) -> str:
    return word if number == 1 else f"{word}s"


def sentence(words: str) -> str:
    return words[:1].upper() + words[1:]
