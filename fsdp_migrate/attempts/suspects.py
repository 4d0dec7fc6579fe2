"""Which units a failed attempt points at.

A guard that was reached is about the site behind it: that has no other form, so its model is left
whole. An error that says that a model is not sharded is about its constructor, whatever line asked
for it; so is a gate that failed, for on a crash that is how the models were sharded by then.
Otherwise an error's own line comes first, then the sites of rules that its words speak of; then the
gates that could not decide, or found another cost, and the models that the run made. Gates point at
sites (``verify/compare/blame.py``) in their order.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path

from fsdp_migrate.attempts.search import Suspect
from fsdp_migrate.families.wrapping.refused_modules import OF_FSDP2
from fsdp_migrate.syntax import guards
from fsdp_migrate.verify.compare.gate import Status
from fsdp_migrate.verify.compare.observed import Observed
from fsdp_migrate.verify.compare.sites import KnownSite
from fsdp_migrate.verify.launch.ending import End, Ending
from fsdp_migrate.verify.report.model import Report

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_NO_METHOD = re.compile(r"'(?P<kind>\w+)' object has no attribute '(?P<name>\w+)'")
# How models are sharded, and how often their gradients are reduced.
_WITHOUT_NUMBERS = ("placement", "units", "collectives")
_CONSTRUCTORS = ("FSDP101", "FSDP103")
# Words of torch's errors, and the rules that write what they speak of.
_WORDS = (
    (
        re.compile(r"same dtype|(?:Half|BFloat16) (?:but|and)", re.IGNORECASE),
        ("FSDP202", "FSDP203"),
    ),
    (re.compile(r"mixed torch\.Tensor and DTensor"), (*_CONSTRUCTORS, "FSDP113")),
)
_KINDS_OF_STATE = frozenset({"FSDP301", "FSDP309"})
_STACK = re.compile(r"^(.+):(\d+) in ", re.MULTILINE)


@dataclass(frozen=True)
class Suspects:
    """Finds the units that reports point at.

    ``owners`` says to which unit a site belongs that is rewritten. ``before`` and ``after`` are the
    trees; only files that are Python and stand in both can be blamed by line.
    """

    owners: Mapping[KnownSite, int]
    before: Path
    after: Path
    left: Mapping[KnownSite, int] = field(default_factory=dict)
    """Sites that are left although the model of that unit is migrated."""

    def of(self, report: Report) -> list[Suspect]:
        """The suspects, the likeliest first, each unit once."""
        found: dict[int, Suspect] = {}
        for suspect in self._all(report):
            found.setdefault(suspect.unit, suspect)
        return list(found.values())

    def _all(self, report: Report) -> Iterator[Suspect]:
        errors = [e for e in report.endings.values() if e.end in (End.CRASHED, End.HUNG)]
        yield from (suspect for e in errors for suspect in self._by_guard(e))
        yield from (suspect for e in errors for suspect in self._by_method(e, report.observed))
        yield from (suspect for e in errors for suspect in self._by_what_is_left(e))
        lines = [suspect for ending in errors for suspect in self._by_lines(ending)]
        if lines and is_of_sharding(lines[0].sites[0]):  # what is not sharded yet tells nothing
            yield lines[0]
        yield from self._by_gates(report, Status.FAIL)
        yield from lines
        yield from (s for ending in errors for s in self._by_words(ending, report.observed))
        yield from self._by_gates(report, Status.VOID, Status.COST)
        made = {f"{each.file}:{each.span.line}" for each in report.observed.made}
        for site, unit in self.owners.items():
            if site.place in made:
                sites = self._sites_of(unit, report.observed)
                yield Suspect(unit, f"its model is made at {site.place}", sites)

    def _at(
        self,
        sites: Iterable[KnownSite],
        evidence: str,
        observed: Observed,
        *,
        is_cause: bool = True,
    ) -> Iterator[Suspect]:
        """The units of some sites, with their other sites behind those: a difference may show where
        it was not made. How a model is sharded is none of them if something else ``is_cause``."""
        by_unit: dict[int, list[KnownSite]] = {}
        for site in sites:
            if site in self.owners:
                by_unit.setdefault(self.owners[site], []).append(site)
        for unit, own in by_unit.items():
            every = self._sites_of(unit, observed)
            others = (site for site in every if not (is_cause and is_of_sharding(site)))
            yield Suspect(unit, f"{evidence} {own[0]}", tuple(dict.fromkeys((*own, *others))))

    def _sites_of(self, unit: int, observed: Observed) -> tuple[KnownSite, ...]:
        """All sites of a unit, those first that the run came by, and those last whose other forms
        change most of the program: how the model is sharded, and the kind of its states."""
        ran = {use.place for use in observed.uses}

        def order(site: KnownSite) -> tuple[bool, bool, bool]:
            return is_of_sharding(site), site.code in _KINDS_OF_STATE, site.place not in ran

        return tuple(sorted((s for s, owner in self.owners.items() if owner == unit), key=order))

    def _by_gates(self, report: Report, *statuses: Status) -> Iterator[Suspect]:
        """What gates of these statuses point at, status by status: first those that no number
        leads to, which are causes whatever else failed."""
        for status in statuses:
            found = [gate for gate in report.gates if gate.status is status]
            for gate in sorted(found, key=lambda gate: gate.key not in _WITHOUT_NUMBERS):
                pointed = report.pointed.get((gate.key, gate.part), ())
                is_cause = status is not Status.COST or gate == report.first_failure
                why = f"{gate.title} points at"
                yield from self._at(pointed, why, report.observed, is_cause=is_cause)

    def _by_method(self, ending: Ending, observed: Observed) -> Iterator[Suspect]:
        """The constructors of a model that was asked for what only a sharded one has."""
        found = _NO_METHOD.search(ending.says)
        if found is None or found["name"] not in OF_FSDP2:
            return
        made = {f"{m.file}:{m.span.line}" for m in observed.made if m.module == found["kind"]}
        for site in self.owners:
            if site.place in made and site.code in _CONSTRUCTORS:
                why = f"{found['kind']} was not sharded by {site}"
                yield Suspect(self.owners[site], why, (site,))

    def _by_guard(self, ending: Ending) -> Iterator[Suspect]:
        """The unit of the site that is left behind a guard, if the guard ended the program."""
        said = guards.TEXT.search(ending.says)
        if said is None:
            return
        places = list(_frames(ending)) or self._guards(said[1], said[2])  # none where it left
        for file, line in reversed(places):
            old = self._old_lines(file, line)
            if old is None:
                continue
            behind = [s for s in self.left if (s.file, s.code) == (file, said[1])]
            behind = [site for site in behind if site.span.last >= old[0]]
            for site in sorted(behind, key=lambda site: abs(site.span.line - old[2]))[:1]:
                why = f"{site} is left for you, and the guard in front of it ended the program"
                yield Suspect(self.left[site], why)

    def _guards(self, code: str, reason: str) -> list[tuple[str, int]]:
        """Where the guards stand that give a reason."""
        named = {site.file for site in self.left if site.code == code}
        return [
            (file, guard.statement.lineno)
            for file in sorted(named)
            if file.endswith(".py")
            for guard in guards.within(ast.parse("\n".join(_lines(self.after / file))))
            if guard.always and guard.reason == reason
        ]

    def _by_what_is_left(self, ending: Ending) -> Iterator[Suspect]:
        """The unit of a site that is left, if the program's innermost line with an error is its."""
        frames = [(file, line) for file, line in _frames(ending) if (self.after / file).is_file()]
        for file, line in frames[-1:]:
            old, new = (_lines(tree / file) for tree in (self.before, self.after))
            for block in SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
                at = line - block.b + block.a
                if not block.b < line <= block.b + block.size:
                    continue
                for site, unit in self.left.items():
                    if site.file == file and site.span.line <= at <= site.span.last:
                        why = f"{site} is left for you, and the error comes from there"
                        yield Suspect(unit, why)

    def _by_lines(self, ending: Ending) -> Iterator[Suspect]:
        """The units whose new code an error came through, the innermost frame first."""
        verb = "raised the error" if ending.end is End.CRASHED else "never came back"
        for file, line in reversed(list(_frames(ending))):
            old = self._old_lines(file, line)
            if old is None:
                continue
            near = [site for site in self.owners if site.file == file]
            near.sort(key=lambda site: (_distance(site, *old[:2]), abs(site.span.line - old[2])))
            if near and _distance(near[0], *old[:2]) == 0:
                unit, why = self.owners[near[0]], f"{file}:{line} of the new code {verb}"
                yield Suspect(unit, why, (near[0],))

    def _by_words(self, ending: Ending, observed: Observed) -> Iterator[Suspect]:
        for words, codes in _WORDS:
            if words.search(ending.says):
                spoken_of = (site for site in self.owners if site.code in codes)
                yield from self._at(spoken_of, "the error speaks of", observed)

    def _old_lines(self, file: str, line: int) -> tuple[int, int, float] | None:
        """The first and last of the lines in the place of which the changed ``line`` stands, from
        1, and about where among them; None if it stands as it did, or in no file of both trees."""
        paths = (self.before / file, self.after / file)
        if Path(file).is_absolute() or not all(path.is_file() for path in paths):
            return None
        old, new = map(_lines, paths)
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if tag != "equal" and j1 < line <= j2:
                share = (line - j1 - 0.5) / (j2 - j1)
                return i1 + 1, max(i2, i1 + 1), i1 + 0.5 + share * (i2 - i1)
        return None


def is_of_sharding(site: KnownSite) -> bool:
    """Whether a site is a constructor's, or that of one of its arguments."""
    return site.code.startswith(("FSDP1", "FSDP2"))


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _frames(ending: Ending) -> Iterator[tuple[str, int]]:
    """Files and lines that an error came through, the outermost first."""
    text = ending.full or "\n".join(ending.traceback)
    yield from ((file, int(line)) for file, line in _FRAME.findall(text))
    for trace in ending.ranks:
        for file, line in _STACK.findall("\n".join(trace.stack)):
            yield file, int(line)


def _distance(site: KnownSite, first: int, last: int) -> int:
    """How many lines lie between a site and some lines; 0 where they meet or touch."""
    if site.span.line > last:
        return max(0, site.span.line - last - 1)
    return max(0, first - site.span.last - 1)
