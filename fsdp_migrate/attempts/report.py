"""What came of a search, as text, JSON and Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fsdp_migrate.attempts.search import OF_THE_ORIGINAL, OF_THE_RUN, Attempt, Other, Search
from fsdp_migrate.planning.forms import AS_SEEN
from fsdp_migrate.report.markdown import code, text
from fsdp_migrate.verify.compare.coverage import listed
from fsdp_migrate.verify.compare.gate import AMPLIFIES, plural
from fsdp_migrate.verify.report.cells import traceback_lines
from fsdp_migrate.verify.report.json import written
from fsdp_migrate.verify.report.model import Report

SCHEMA = 1
"""Version of :meth:`Migration.to_dict`."""
_MANY = 3


@dataclass(frozen=True, kw_only=True)
class Migration:
    """A search that is over. ``titles`` names each unit: ``the model made at train.py:20``."""

    programs: tuple[str, ...]
    titles: tuple[str, ...]
    search: Search
    seconds: float
    written: tuple[str, ...] = ()
    """The files that were changed or added."""
    notes: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()
    """What the original's run showed that something rests on: place and fact."""
    code: str = ""
    """What Markdown says of the changed code, below the training: to review, left, files."""

    @property
    def best(self) -> Attempt | None:
        """The attempt that trains the same with the least left; None where only the original
        does."""
        best = self.search.best
        return best if best is not None and best.reports else None

    @property
    def undecided(self) -> Report | None:
        """The report that ended the search because of the original: it crashes, say."""
        reports = [each.report for each in self.search.attempts if each.report is not None]
        return reports[-1] if reports and reports[-1].verdict in OF_THE_ORIGINAL else None

    @property
    def title(self) -> str:
        """The answer in a few words."""
        best = self.best
        if best is None:
            said = self.undecided
            return f"not migrated: {said.title if said else 'no attempt trained the same'}"
        costs = any("cost" in report.verdict.value for report in best.reports)
        stamp = ", in a CPU simulation of CUDA" if any(r.simulated for r in best.reports) else ""
        return f"same training{', other cost' if costs else ''}{stamp}"

    @property
    def left(self) -> dict[int, str]:
        """The units that were left to train the same, and the evidence against each."""
        left = sorted(self.best.forms.left) if self.best is not None else []
        return {unit: self._failure(unit) for unit in left}

    @property
    def taken(self) -> dict[str, str]:
        """The other forms that were taken to train the same, and the evidence likewise."""
        taken = sorted(self.best.forms.taken) if self.best is not None else []
        return {other.what: self._failure(other) for other in taken}

    def _failure(self, other: Other | int) -> str:
        """What failed without something, and the rest, as nearly as was tried, as it is now."""
        assert self.best is not None
        others = self.best.forms.others
        failed = [
            attempt
            for attempt in self.search.attempts
            if other not in attempt.forms.others and not attempt.passes
        ]
        closest = min(failed, key=lambda each: len(each.forms.others ^ others), default=None)
        report = closest.report if closest is not None else None
        return (
            f"as it is written first, {report.title}: {report.says}" if report is not None else ""
        )

    @property
    def not_executed(self) -> tuple[str, ...]:
        """Changed lines that no program came by, which rest on the code alone."""
        if self.best is None:
            return ()
        return _in_all([report.not_executed for report in self.best.reports])

    @property
    def unseen(self) -> tuple[str, ...]:
        """What the original did with FSDP1 that no site accounts for, program by program."""
        reports = self.best.reports if self.best is not None else ()
        caveats = [each.accounted.caveat for each in reports if each.accounted is not None]
        return tuple(filter(None, caveats))

    def to_dict(self) -> dict[str, Any]:
        """The answer as JSON values; the keys are stable within one ``schema``."""
        return {
            "schema": SCHEMA,
            "same_training": self.best is not None,
            "title": self.title,
            "programs": list(self.programs),
            "attempts": [self._attempt(attempt) for attempt in self.search.attempts],
            "left": self._listed(self.left),
            "other_forms": [{"what": what, "evidence": why} for what, why in self.taken.items()],
            "stopped": self.search.stopped,
            "unseen": list(self.unseen),
            "not_executed": list(self.not_executed),
            **({"seen": list(self.seen)} if self.seen else {}),
            "written": list(self.written),
            "notes": list(self.notes),
            "seconds": round(self.seconds, 2),
        }

    def _listed(self, units: dict[int, str]) -> list[dict[str, str]]:
        return [{"what": self.titles[unit], "evidence": why} for unit, why in units.items()]

    def _attempt(self, attempt: Attempt) -> dict[str, Any]:
        forms = attempt.forms
        return {
            "left": [self.titles[unit] for unit in sorted(forms.left)],
            "other_forms": [other.what for other in sorted(forms.taken)],
            "why": attempt.why,
            "passes": attempt.passes,
            "seconds": round(attempt.seconds, 2),
            "reports": [report.to_dict() for report in attempt.reports],
        }


def attempt_lines(number: int, attempt: Attempt, titles: Sequence[str]) -> Iterator[str]:
    """An attempt on the screen, when it is done."""
    what = what_was_tried(attempt, titles)
    yield f"attempt {number}: {what}{f' ({attempt.why})' if attempt.why else ''}"
    report = attempt.report
    if report is None:
        yield f"  that is the original itself ({attempt.seconds:.0f} s)"
        return
    yield f"  {report.word}, {report.title}: {report.says} ({attempt.seconds:.0f} s)"
    first = report.first_failure
    if not attempt.passes and first is not None and report.points_at(first):
        yield f"  points at {report.points_at(first)}"
    if report.amplifies_rounding:
        yield f"  {AMPLIFIES}"
    for ending in report.endings.values():
        if ending.says and not attempt.passes:
            yield from (f"    {line}" for line in traceback_lines(ending, indent="  ", most=6))


def answer_lines(migration: Migration) -> Iterator[str]:
    """The answer on the screen, below the attempts."""
    search = migration.search
    trained = sum(attempt.trained for attempt in search.attempts)
    spent = f"{plural(trained, 'attempt')}, {migration.seconds:.0f} s"
    yield f"ANSWER: {migration.title} ({spent})"
    if search.stopped and migration.undecided is None:
        yield f"  the search ended early: {search.stopped}"
    for unit, why in migration.left.items():
        yield f"  left as it was: {migration.titles[unit]}; {why}"
    for what, why in migration.taken.items():
        yield f"  in another form: {what}; {why}"
    if migration.not_executed:
        places = listed(migration.not_executed)
        yield f"  rests on the code alone, for no program came by: {places}"
    yield from (f"  seen in the run, not known from the code: {each}" for each in migration.seen)
    yield from (f"  but: {caveat}" for caveat in migration.unseen)
    yield from (f"  {note}" for note in migration.notes)


def as_text(migration: Migration) -> str:
    """What the screen shows: the attempts and the answer."""
    lines: list[str] = []
    for number, attempt in enumerate(migration.search.attempts, 1):
        lines += attempt_lines(number, attempt, migration.titles)
    return "\n".join([*lines, *answer_lines(migration)]) + "\n"


def as_json(migration: Migration) -> str:
    """The answer as data."""
    return written(migration.to_dict())


def markdown(migration: Migration) -> str:
    """The answer for the description of a pull request."""
    lines = [f"## migrate: {text(migration.title)}", ""]
    lines += [f"Trained before and after: {', '.join(map(code, migration.programs))}.", ""]
    lines += ["| attempt | what | answer | seconds |", "|--:|---|---|--:|"]
    for number, attempt in enumerate(migration.search.attempts, 1):
        what = text(what_was_tried(attempt, migration.titles))
        report = attempt.report
        said = f"{report.word}, {report.title}: {report.says}" if report else "the original"
        lines.append(f"| {number} | {what} | {text(said)} | {attempt.seconds:.0f} |")
    lines.append("")
    if migration.search.stopped:
        lines += [f"The search ended early: {text(migration.search.stopped)}.", ""]
    for unit, why in migration.left.items():
        lines.append(f"- **Left as it was**: {text(migration.titles[unit])}; {text(why)}")
    for what, why in migration.taken.items():
        lines.append(f"- In another form: {text(what)}; {text(why)}")
    if migration.not_executed:
        places = ", ".join(map(code, migration.not_executed))
        lines.append(f"- No program came by, so this rests on the code alone: {places}")
    lines += [f"- Seen in the run, not known from the code: {text(e)}" for e in migration.seen]
    lines += [f"- But: {text(caveat)}" for caveat in migration.unseen]
    lines += [f"- {text(note)}" for note in migration.notes]
    return "\n".join(lines).rstrip() + "\n" + migration.code


def what_was_tried(attempt: Attempt, titles: Sequence[str]) -> str:
    """The forms of an attempt in one sentence."""
    forms = attempt.forms
    parts = []
    if forms.left:
        parts.append(f"without {listed([titles[unit] for unit in sorted(forms.left)])}")
    shown = [other.what for other in sorted(forms.taken) if other.unit == OF_THE_RUN]
    if len(shown) > _MANY:
        shown = [f"not {AS_SEEN} at {len(shown)} places"]
    parts += shown
    parts += [other.what for other in sorted(forms.taken) if other.unit != OF_THE_RUN]
    return ", ".join(parts) or "everything is written out"


def _in_all(blocks: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The lines that are in the blocks (``train.py:88-90``) of every program."""
    found = [_lines(each) for each in blocks]
    common = set.intersection(*found) if found else set()
    by_file: dict[str, list[int]] = defaultdict(list)
    for file, line in sorted(common):
        by_file[file].append(line)
    return tuple(
        f"{file}:{first}" if first == last else f"{file}:{first}-{last}"
        for file, lines in by_file.items()
        for first, last in _runs(lines)
    )


def _lines(blocks: Sequence[str]) -> set[tuple[str, int]]:
    found = set()
    for block in blocks:
        file, _, lines = block.rpartition(":")
        first, _, last = lines.partition("-")
        found |= {(file, line) for line in range(int(first), int(last or first) + 1)}
    return found


def _runs(lines: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of the lines that follow one another."""
    first = last = lines[0]
    for line in lines[1:]:
        if line > last + 1:
            yield first, last
            first = line
        last = line
    yield first, last
