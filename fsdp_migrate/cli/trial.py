"""One migration of a project, trained: what ``migrate`` tries, over and over."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fsdp_migrate.attempts.report import attempt_lines
from fsdp_migrate.attempts.search import OF_THE_RUN, Attempt, Forms, Other, Search, Suspect
from fsdp_migrate.attempts.suspects import Suspects, is_of_sharding
from fsdp_migrate.cli import console
from fsdp_migrate.cli.options import Migrate
from fsdp_migrate.cli.programs import Program
from fsdp_migrate.cli.session import Run
from fsdp_migrate.cli.study import known_sites
from fsdp_migrate.discovery import walk
from fsdp_migrate.migration.engine import Key, key
from fsdp_migrate.migration.units import Unit
from fsdp_migrate.planning.forms import AS_SEEN, WRITTEN_OUT, Place
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.result import Result
from fsdp_migrate.planning.seen import Seen
from fsdp_migrate.rewriting import write
from fsdp_migrate.verify import run as verification
from fsdp_migrate.verify.compare.coverage import listed
from fsdp_migrate.verify.compare.gate import AMPLIFIES, Status
from fsdp_migrate.verify.compare.gates.shape import STILL_FSDP1
from fsdp_migrate.verify.compare.sites import KnownSite, Study
from fsdp_migrate.verify.launch.warm import WarmServer
from fsdp_migrate.verify.report.against_sites import against_sites
from fsdp_migrate.verify.report.model import Report, Verdict
from fsdp_migrate.verify.report.progress import Progress

_SHARDING = "FSDP101"  # how a model is sharded, whichever rule of its arguments is asked


@dataclass
class Trial:
    """Trains migrations of one tree, whose units take certain forms."""

    asked: Migrate
    run: Run
    programs: Sequence[Program]
    scratch: Path
    server: WarmServer
    seen: Seen
    units: list[Unit] = field(init=False)
    made_models: bool = False
    """Whether some program made a model with FSDP1."""
    _number: int = 0
    _trees: dict[Forms, Path] = field(default_factory=dict)
    """The migrated tree of each attempt."""
    _results: dict[Forms, Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.units = self.run.units
        self.tree = self.programs[0].tree
        owner = {k: n for n, unit in enumerate(self.units) for k in unit.keys}
        self.owners: dict[KnownSite, int] = {}
        self.left: dict[KnownSite, int] = {}
        self._keys: dict[KnownSite, Key] = {}
        for decision in self.run.result.decisions:
            for site in known_sites(decision, self.tree):
                if decision.outcome is not Outcome.LEFT:
                    self.owners[site] = owner[key(decision)]
                    self._keys[site] = key(decision)
                else:
                    places = {constructor.place for constructor in decision.models}
                    for number, unit in enumerate(self.units):
                        if unit.constructors & places:
                            self.left[site] = number
        every = [s for d in self.run.result.decisions for s in known_sites(d, self.tree)]
        self.study = Study(self.tree, tuple(every))
        self.names = [
            program.shown or " ".join([program.script, *self.asked.args])
            for program in self.programs
        ]

    @property
    def searched(self) -> list[int]:
        """The units that change code."""
        return sorted(set(self.owners.values()))

    def result(self, forms: Forms, reasons: Mapping[int, str]) -> Result:
        """The run's result with units in these forms; ``reasons`` says why units are left."""
        if not forms.others:
            return self.run.result
        refused = {k: why for unit, why in reasons.items() for k in self.units[unit].keys}
        passed_over: dict[Place, list[str]] = {}
        for other in forms.taken:
            for place, name in other.passed_over:
                passed_over.setdefault(place, []).append(name)
        return self.run.without(refused, passed_over=passed_over)

    def further(self, forms: Forms, suspect: Suspect) -> Iterator[Forms]:
        """The forms that come after those that ``forms`` say, of the sites that a failure points
        at: those of one rule together, and none that leaves more."""
        asked: set[str] = set()
        for site in suspect.sites:
            code = _SHARDING if is_of_sharding(site) else site.code
            if code in asked:
                continue
            asked.add(code)
            now, result = forms, self._tried(forms)
            while (other := self._next(code, suspect, now, result)) is not None:
                if other in now.taken:
                    break
                now = now.taking(other)
                before, result = result, self._tried(now)
                leaves_more = result.count(Outcome.LEFT) > before.count(Outcome.LEFT)
                if leaves_more:
                    break
                if result.changes != before.changes:
                    yield now

    def on_code(self) -> Forms:
        """The forms that rest on nothing that only the run showed."""
        taken = []
        for path, line in sorted(self.seen.relied):
            place = f"{self.run.found.display(path)}:{line}"
            what = f"not {AS_SEEN} at {place}"
            taken.append(Other(OF_THE_RUN, what, (((path, (line, 0)), AS_SEEN),)))
        return Forms(frozenset(taken))

    def alike(self, one: Forms, other: Forms) -> bool:
        """Whether the same code is written in both forms, as far as no run is needed to tell."""
        if one.left != other.left:
            return False
        return self._tried(one).changes == self._tried(other).changes

    def _next(self, code: str, suspect: Suspect, forms: Forms, result: Result) -> Other | None:
        """The next form of what a rule wrote at the sites of a suspect, in the ``result`` of some
        forms."""
        unit = self.units[suspect.unit]
        if code == _SHARDING:
            places = tuple((place, WRITTEN_OUT) for place in sorted(unit.constructors))
            return Other(suspect.unit, f"the run-time form for {unit.title}", places)
        asked = {self._keys[site] for site in suspect.sites if site.code == code}
        before = {each for other in forms.taken for each in other.passed_over}
        passed_over, shown = [], []
        for decision in result.decisions:
            form = decision.form
            if form is not None and form.further and key(decision) in asked:
                site = decision.site
                at = (site.module.path, site.position)
                passed_over += [each for each in sorted(before) if each[0] == at]
                passed_over.append((at, form.name))
                place = f"{self.run.found.display(site.module.path)}:{site.position[0]}"
                shown.append((form.further[0], place))
        if not shown:
            return None
        what = f"{shown[0][0]} for {code} at {listed([place for _, place in shown])}"
        return Other(suspect.unit, what, tuple(passed_over))

    def _tried(self, forms: Forms) -> Result:
        """What is written in these forms."""
        if forms not in self._results:
            self._results[forms] = self.result(forms, dict.fromkeys(forms.left, "left"))
        return self._results[forms]

    def train(self, forms: Forms) -> tuple[Report, ...]:
        """The reports of the programs with units in these forms, until one fails.

        A program that trains the same because its models were left proves nothing: it has no
        report.
        """
        self._number += 1
        after = self._trees[forms] = self._copy(forms)
        reports: list[Report] = []
        for program, name in zip(self.programs, self.names, strict=True):
            settings = dataclasses.replace(self.asked, cache=cache(self.asked, self.scratch))
            plan = dataclasses.replace(
                program.plan(settings, before=self.tree, after=after),
                reduces_more=any(
                    decision.form is not None and decision.form.form.reduces_more
                    for decision in self._tried(forms).decisions
                ),
            )
            with Progress(plan.max_steps) as progress:
                report = verification.verify(plan, on_event=progress, server=self.server)
            report = dataclasses.replace(
                against_sites(report, self.study),
                program=name,
                after=f"attempt {self._number}",
                strict_cost=self.asked.strict_cost,
            )
            observed = report.observed
            self.made_models |= bool(observed.made or observed.uses or observed.problems)
            if forms.may_leave and kept_its_models(report):
                continue
            reports.append(report)
            if report.exit_code:
                break
        return tuple(reports)

    def _copy(self, forms: Forms) -> Path:
        """A copy of the tree that is migrated in these forms."""
        # Not "after" but the name of the tree, which is that of a package perhaps.
        copy = self.scratch / f"attempt-{self._number}" / self.tree.name
        large = {self.tree / path for path in self.asked.share}
        skipped = shutil.ignore_patterns(*walk.SKIPPED, "*.pyc")

        def ignored(folder: str, names: list[str]) -> set[str]:
            shared = {name for name in names if Path(folder, name) in large}
            return shared | skipped(folder, names)

        shutil.copytree(
            self.tree, copy, symlinks=True, ignore=ignored, ignore_dangling_symlinks=True
        )
        result = self._tried(forms)
        changes = {
            copy / path.relative_to(self.tree): data
            for path, data in result.changes.items()
            if path.is_relative_to(self.tree)
        }
        write.write(copy, changes, state=copy.with_name("journal"))
        return copy

    def suspect(self, attempt: Attempt) -> list[Suspect]:
        """The units that the failure of an attempt points at."""
        assert attempt.report is not None
        if attempt.report.amplifies_rounding:
            return []  # so does the original: no form tells more
        after = next(tree for f, tree in self._trees.items() if self.alike(f, attempt.forms))
        return Suspects(self.owners, self.tree, after, self.left).of(attempt.report)

    def tell(self, number: int, attempt: Attempt) -> None:
        """Show an attempt that is done."""
        if not self.asked.quiet:
            titles = [unit.title for unit in self.units]
            console.out("\n".join(attempt_lines(number, attempt, titles)))

    def notes(self, search: Search) -> list[str]:
        """What has to be said beside the answer."""
        reports = [attempt.report for attempt in search.attempts if attempt.report is not None]
        ended = reports and reports[-1].verdict in (Verdict.BEFORE_FAILED, Verdict.BEFORE_HUNG)
        if search.attempts and not self.made_models and not ended:
            listed = ", ".join(self.names)
            return [f"{listed} made no model with FSDP1, so nothing of the migration was tried"]
        return []


def cache(asked: Migrate, scratch: Path) -> Path:
    """Where the recordings of the original are kept between attempts."""
    if asked.cache is not None:
        return asked.cache
    kept = scratch / "recordings"
    kept.mkdir(exist_ok=True)
    return kept


def kept_its_models(report: Report) -> bool:
    """Whether a program still trains FSDP1's models, and everything else that can be compared is
    the same."""
    open_ = [gate for gate in report.gates if gate.status in (Status.FAIL, Status.VOID)]
    return [gate.says for gate in open_ if gate.hint != AMPLIFIES] == [STILL_FSDP1]
