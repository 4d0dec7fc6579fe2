"""Which units a failed attempt points at.

An error's own line comes first, then the sites of rules that its words speak of; then the sites
that gates point at (``verify/compare/blame.py``), in the order of the gates; then the models that
the run made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from fsdp_migrate.attempts.search import Suspect
from fsdp_migrate.verify.compare.gate import Gate, Status
from fsdp_migrate.verify.compare.observed import Observed
from fsdp_migrate.verify.compare.sites import KnownSite
from fsdp_migrate.verify.launch.ending import End, Ending
from fsdp_migrate.verify.report.model import Report

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
# Words of torch's errors, and the rules that write what they speak of.
_WORDS = (
    (
        re.compile(r"same dtype|(?:Half|BFloat16) (?:but|and)", re.IGNORECASE),
        ("FSDP202", "FSDP203"),
    ),
    (re.compile(r"mixed torch\.Tensor and DTensor"), ("FSDP101", "FSDP103", "FSDP113")),
)
_KINDS_OF_STATE = frozenset({"FSDP301", "FSDP309"})
_STACK = re.compile(r"^(.+):(\d+) in ", re.MULTILINE)


@dataclass(frozen=True)
class Suspects:
    """Finds the units that reports point at.

    ``owners`` says to which unit a site belongs. ``before`` and ``after`` are the trees; only files
    that are Python and stand in both can be blamed by line.
    """

    owners: Mapping[KnownSite, int]
    before: Path
    after: Path

    def of(self, report: Report) -> list[Suspect]:
        """The suspects, the likeliest first, each unit once."""
        found: dict[int, Suspect] = {}
        for suspect in self._all(report):
            found.setdefault(suspect.unit, suspect)
        return list(found.values())

    def _all(self, report: Report) -> Iterator[Suspect]:
        for ending in report.endings.values():
            if ending.end in (End.CRASHED, End.HUNG):
                yield from self._by_lines(ending)
                yield from self._by_words(ending, report.observed)
        for gate in _in_order(report.gates):
            pointed = report.pointed.get((gate.key, gate.part), ())
            is_cause = gate.status is not Status.COST or gate == report.first_failure
            why = f"{gate.title} points at"
            yield from self._at(pointed, why, report.observed, is_cause=is_cause)
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

    def _by_lines(self, ending: Ending) -> Iterator[Suspect]:
        """The units whose new code an error came through, the innermost frame first."""
        verb = "raised the error" if ending.end is End.CRASHED else "never came back"
        for file, line in reversed(list(_frames(ending))):
            old = self._old_lines(file, line)
            if old is None:
                continue
            near = [site for site in self.owners if site.file == file]
            near.sort(key=lambda site: _distance(site, *old))
            if near and _distance(near[0], *old) == 0:
                unit, why = self.owners[near[0]], f"{file}:{line} of the new code {verb}"
                yield Suspect(unit, why, (near[0],))

    def _by_words(self, ending: Ending, observed: Observed) -> Iterator[Suspect]:
        for words, codes in _WORDS:
            if words.search(ending.says):
                spoken_of = (site for site in self.owners if site.code in codes)
                yield from self._at(spoken_of, "the error speaks of", observed)

    def _old_lines(self, file: str, line: int) -> tuple[int, int] | None:
        """The lines in the place of which the changed ``line`` stands, from 1; None if it stands as
        it did, or in no file of both trees."""
        paths = (self.before / file, self.after / file)
        if Path(file).is_absolute() or not all(path.is_file() for path in paths):
            return None
        old, new = (
            path.read_text(encoding="utf-8", errors="replace").splitlines() for path in paths
        )
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if tag != "equal" and j1 < line <= j2:
                return i1 + 1, max(i2, i1 + 1)
        return None


def is_of_sharding(site: KnownSite) -> bool:
    """Whether a site is a constructor's, or that of one of its arguments."""
    return site.code.startswith(("FSDP1", "FSDP2"))


def _in_order(gates: tuple[Gate, ...]) -> Iterator[Gate]:
    """Gates that failed, then those that could not decide, then those that found another cost."""
    for status in (Status.FAIL, Status.VOID, Status.COST):
        yield from (gate for gate in gates if gate.status is status)


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
