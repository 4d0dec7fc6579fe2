"""The description of a pull request: what a reviewer of a migration wants to know.

Places are lines of the migrated files. Nothing of the source comes out as markup (``markdown``).
"""

from __future__ import annotations

import ast
import difflib
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fsdp_migrate import shown
from fsdp_migrate.planning.outcome import Outcome, place
from fsdp_migrate.planning.pages import DIFFERENT, Page
from fsdp_migrate.report.event import Event, Summary
from fsdp_migrate.report.markdown import code, folded, quoted, section, table, text
from fsdp_migrate.report.text import (
    guard_lines,
    headline,
    open_lines,
    plural,
    problem_lines,
    sentence,
)
from fsdp_migrate.syntax import notebook, suppressions


@dataclass(frozen=True)
class Verdict:
    """What ``verify`` found: ``PASS, same training``, the reason, and under which conditions."""

    title: str
    says: str
    setting: str


def render(
    found: Sequence[Event],
    total: Summary,
    pages: Sequence[Page],
    commands: Sequence[str],
    verdict: Verdict | None = None,
) -> str:
    """The whole text. ``total.contents`` holds the files of the run; ``commands`` verify it."""
    done = _done(found, total)
    lines = [
        *_head(total, migrated=bool(done)),
        *details(found, total, pages),
        *(_verification(commands, verdict) if done else ()),
    ]
    return "\n".join(lines) + "\n"


def details(found: Sequence[Event], total: Summary, pages: Sequence[Page]) -> list[str]:
    """The sections about the code: what changes, what is to review, what is left."""
    known = {page.code: page for page in pages}
    done = _done(found, total)
    now = _Now(total.contents)
    return [
        *_changes(done, known),
        *_files(total),
        *_review(found, now),
        *_left(found, total, now),
        *_different(done, known),
    ]


def _done(found: Sequence[Event], total: Summary) -> Counter[str]:
    """How many places each rule has changed."""
    done = Counter(e.code for e in found if e.outcome is not Outcome.LEFT)
    done.update(r.code for r in total.requirements if r.done)
    return done


def _head(total: Summary, *, migrated: bool) -> Iterator[str]:
    yield "## Migrate from FSDP1 to FSDP2" if migrated else "## FSDP1 stays"
    yield ""
    if not total.sites:
        yield f"No FSDP1 found in {total.files} {plural('file', total.files)}."
    else:
        ignored = f", {total.ignored} ignored" if total.ignored else ""
        review = f", {total.review} rewritten and to review" if total.review else ""
        yield (
            f"{total.sites} {plural('place', total.sites)} of FSDP1: {total.rewritten} rewritten"
            f"{review}, {total.for_you} left{ignored}."
        )
    yield from quoted(problem_lines(total), "**Error**: ")
    yield from quoted(open_lines(total))
    yield from quoted(total.notes if total.sites else ())


def _changes(done: Mapping[str, int], known: Mapping[str, Page]) -> list[str]:
    rows = []
    for rule, number in sorted(done.items()):
        page = known.get(rule)
        rows.append((rule, str(number), page.summary if page is not None else ""))
    if not rows:
        return []
    told = "`fsdp-migrate explain` and a rule's code show its page: reasons, and an example."
    return [*section("What changes", ("rule", "places", "what is done"), rows), "", told]


def _files(total: Summary) -> Iterator[str]:
    if not total.changed and not total.created:
        return
    yield from ("", "### Files", "")
    if total.changed:
        yield f"- changed: {', '.join(map(code, total.changed))}"
    for path in total.created:
        _, after = total.contents.get(path, ("", ""))
        yield f"- added: {code(path)}{_functions(after)}"


def _functions(source: str) -> str:
    """What a new file defines."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return ""
    kinds = (ast.FunctionDef, ast.ClassDef)
    names = [n.name for n in body if isinstance(n, kinds) and not n.name.startswith("_")]
    return f", with {', '.join(map(code, names))}" if names else ""


def _review(found: Sequence[Event], now: _Now) -> list[str]:
    """What is marked for review. One comment may stand for several places."""
    rows = [now.row(e) for e in found if e.outcome is Outcome.REVIEW and not e.ignored]
    heads = ("place", "rule", "becomes", "what may differ")
    return section("To review", heads, list(dict.fromkeys(rows))) if rows else []


def _left(found: Sequence[Event], total: Summary, now: _Now) -> list[str]:
    left = [e for e in found if e.outcome is Outcome.LEFT and not e.ignored]
    causes = [now.row(e) for e in left if not e.held]
    causes += [
        (code(r.place), r.code, text(r.message), text(sentence(r.help)))
        for r in total.requirements
        if not r.done
    ]
    lines = section("Left", ("place", "rule", "why", "next step"), causes) if causes else []
    for line in guard_lines(found):
        lines += ["", text(sentence(now.renumbered(line)))]
    held = [
        (now.place(e), code(e.construct.shown), text(now.renumbered(e.message)))
        for e in left
        if e.held
    ]
    if held:
        number = f"{len(held)} {plural('place', len(held))}"
        told = f"{number} held back: with what is left settled, they are migrated by another run"
        lines += folded(told, table(("place", "what", "why"), held))
    return lines


def _different(done: Mapping[str, int], known: Mapping[str, Page]) -> list[str]:
    """What the pages of the rules say of programs that were migrated by them."""
    told = [(rule, known[rule].section(DIFFERENT)) for rule in sorted(done) if rule in known]
    listed = [f"- {' '.join(said.split())} ({rule})" for rule, said in told if said]
    return ["", "### What may be different", "", *listed] if listed else []


def _verification(commands: Sequence[str], verdict: Verdict | None) -> Iterator[str]:
    yield from ("", "### Does it train the same?", "")
    if verdict is not None:
        yield f"**{text(verdict.title)}**: {text(verdict.says, len(verdict.says))}"
        yield ""
        yield text(verdict.setting, len(verdict.setting))
        yield ""
        yield "To train both versions again and compare them:"
    else:
        yield "Not verified yet. To train both versions and compare them:"
    yield ""
    yield "```sh"
    yield from (shown.line(command) for command in commands)
    yield "```"


# -- places ---------------------------------------------------------------------------------------


class _Now:
    """How to name places by the lines of the files as they are now."""

    def __init__(self, contents: Mapping[str, tuple[str, str]]) -> None:
        self._moved: dict[str, list[int]] = {}
        self._markers: dict[str, Sequence[suppressions.Marker]] = {}
        for path, (before, after) in contents.items():
            if not path.endswith(notebook.SUFFIX) and before != after:
                self._moved[path] = _moved(before.split("\n"), after.split("\n"))
                self._markers[path] = _markers(after)
        longest_first = sorted(self._moved, key=len, reverse=True)
        self._named = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, longest_first))}):(\d+)")

    def line(self, path: str, line: int) -> int:
        moved = self._moved.get(path, [])
        return moved[line - 1] if 0 < line <= len(moved) else line

    def place(self, event: Event) -> str:
        line = event.line if event.cell else self.line(event.path, event.line)
        if event.outcome is Outcome.REVIEW:
            near = [m.line for m in self._markers.get(event.path, ()) if m.code == event.code]
            line = min(near, key=lambda each: abs(each - line), default=line)
        return code(place(event.path, line, event.cell))

    def row(self, event: Event) -> tuple[str, str, str, str]:
        what, why = map(self.renumbered, (headline(event), sentence(event.help)))
        return self.place(event), event.code, text(what), text(why)

    def renumbered(self, said: str) -> str:
        """A message that names places."""
        if not self._moved:
            return said
        return self._named.sub(lambda m: f"{m[1]}:{self.line(m[1], int(m[2]))}", said)


def _moved(old: Sequence[str], new: Sequence[str]) -> list[int]:
    """For every line, from 1, the line where it is now, or where what replaced it begins."""
    found = [0] * len(old)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, start, end, first, _ in matcher.get_opcodes():
        for line in range(start, end):
            found[line] = min(first + (line - start if tag == "equal" else 0) + 1, len(new))
    return found


def _markers(source: str) -> Sequence[suppressions.Marker]:
    try:
        return suppressions.read(source).markers
    except (tokenize.TokenError, SyntaxError):
        return ()
