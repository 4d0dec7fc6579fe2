"""One run over paths: configuration, gate, engine. What every command starts with."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.cli import config, console, headroom, trust
from fsdp_migrate.cli.exit_codes import BAD
from fsdp_migrate.configurations import releases
from fsdp_migrate.discovery import project_paths, search
from fsdp_migrate.discovery.project_files import ProjectFiles
from fsdp_migrate.errors import ConfigError, InputError
from fsdp_migrate.planning import forms, pages
from fsdp_migrate.planning.chosen import Chosen
from fsdp_migrate.planning.result import NotFollowed, Problem, Result

if TYPE_CHECKING:
    from fsdp_migrate.cli.configurations import Configs
    from fsdp_migrate.cli.requirements import Floors
    from fsdp_migrate.migration.engine import Key
    from fsdp_migrate.migration.units import Unit
    from fsdp_migrate.planning.seen import Seen

# Of a file without FSDP that is joined to one with it by imports.
LEADING_NOWHERE = (
    "what a file does with a model is not known where it imports {name}: the project says that it "
    "is its own, and nothing here has that name"
)
UNREAD = (
    f"what a file does with a model is not known, as Python {sys.version_info[0]}."
    f"{sys.version_info[1]}, which runs this, cannot parse it"
)


@dataclass
class Run:
    """A finished run; nothing has been written yet."""

    config: config.Config
    found: ProjectFiles
    result: Result
    seconds: float
    trust: trust.Trust
    floors: Floors | None = None  # None: what the project requires is not looked at
    configs: Configs | None = None  # None: there are none, or they are not looked at

    def without(
        self,
        refused: Mapping[Key, str],
        *,
        passed_over: forms.PassedOver = forms.NONE,
        settle: bool = True,
    ) -> Result:
        """The result of this run if some decisions are not taken, for the reasons that stand beside
        them, and forms of sites are ``passed_over``; to look at only, unless ``settle``."""
        again = self.result.again
        result = Result()
        if again is not None:  # there is something of FSDP1 in code
            result = headroom.with_deep_stack(
                lambda: again(refused, passed_over=passed_over, settle=settle)
            )
        result.problems = list(dict.fromkeys([*self.result.problems, *result.problems]))
        if self.floors is not None and self.floors.key not in refused:
            self.floors.raise_in(result)
        if self.configs is not None:
            self.configs.decide_in(result, refused)
            if self.floors is not None and self.floors.key not in refused:
                self.floors.name_for_settings(result)
        return result

    @property
    def units(self) -> list[Unit]:
        """What can be taken or left of it, each as a whole."""
        from fsdp_migrate.migration.units import Unit, find_units

        found = find_units(self.result.decisions, self.result.hazards)
        if self.floors is not None and any(each.done for each in self.result.requirements):
            found.append(Unit("what the project requires of torch", {self.floors.key}))
        if self.configs is not None:
            found += self.configs.units()
        return found

    @property
    def incomplete(self) -> bool:
        """Whether there are sites, and rules of the project's own were not asked about them.

        Nobody knows what those would have said, so that such a run is never a success.
        """
        return self.trust.missing and bool(self.result.decisions)

    @property
    def before(self) -> dict[Path, bytes]:
        required = self.floors.before if self.floors is not None else {}
        found = self.found
        return {**found.candidates, **found.others, **found.configurations, **required}

    @property
    def notes(self) -> tuple[str, ...]:
        """What the configuration brings with it; less what is said of each requirement."""
        told = bool(self.result.requirements)
        return (*self.config.notes, *(() if told else self.config.low_bounds))

    @property
    def changed(self) -> list[Path]:
        """Existing files whose contents change."""
        return sorted(p for p in self.result.changes if p in self.before)

    @property
    def created(self) -> list[Path]:
        return sorted(p for p in self.result.changes if p not in self.before)


def run(
    paths: Sequence[Path],
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    leave: Sequence[str] = (),
    target: str | None = None,
    edit: bool = True,
    partial: bool | None = None,
    jobs: int = 1,
    trust_rules: bool = False,
    home: Path | None = None,
    quiet: bool = False,
    configs: bool | None = False,
    piped: bytes | None = None,
    seen: Seen | None = None,
    hazards: bool = False,
    mend: bool = False,
) -> Run:
    """Find, read, decide and (with ``edit``) make the new contents of everything under ``paths``.

    ``partial`` puts guards where left sites would otherwise hold a model's migration back; None is
    what the configuration says. With ``trust_rules``, or when the user's configuration says so,
    rules of the project's own run; ``home`` is the project that ``paths`` are a copy of.
    ``quiet``: whose rules run was said. ``configs``: settings of frameworks count too; None is
    what the configuration says.
    ``piped`` is a file that is given in the place of paths.
    ``seen`` is what a run of the original has shown, or gets told what it is to show.
    ``hazards``: what is wrong in code that uses FSDP2 is looked for as well; ``mend``: and put
    right where one form is surely right.

    Raises:
        PathProblem: a path cannot be used.
        ConfigError: the configuration is wrong.
        rule.RuleError: a rule of the user's is wrong.
    """
    started = time.perf_counter()
    settings = config.load(start(paths) if piped is None else Path.cwd(), target=target)
    _check_codes((*select, *ignore, *leave), "", settings)
    configured_codes = (*settings.select, *settings.ignore, *settings.leave)
    _check_codes(configured_codes, f"{config.TABLE}: ", settings)
    word = trust.find_trust(home or settings.root, settings.rule_paths, asked=trust_rules)
    if word.note and not quiet:
        console.note(f"note: {word.note}")
    chosen = Chosen(
        frozenset(select or settings.select),
        frozenset((*ignore, *settings.ignore)),
        frozenset((*leave, *settings.leave)),
    )
    result = Result()
    with headroom.without_collector():
        wanted = settings.configs if configs is None else configs
        found = (
            search.find(paths, settings.exclude, settings.root, jobs=jobs, configurations=wanted)
            if piped is None
            else search.of_text(piped)
        )
        configured = None
        if found.configurations:
            from fsdp_migrate.cli.configurations import Configs

            configured = Configs.read(
                found.configurations,
                found.display,
                found.root,
                settings.line_length,
                chosen,
                edit=edit,
                pinned=lambda name, path: releases.pinned(name, path, settings.root),
                sources=found.candidates,
                python=lambda: _python(found),
            )
        if found.candidates:
            result = _engine(
                found,
                settings,
                chosen,
                word.loaded,
                edit=edit,
                partial=settings.partial if partial is None else partial,
                jobs=jobs,
                seen=seen,
                hazards=hazards or mend,
                mend=mend,
                accelerate=configured.found.accelerate(found.root)
                if configured is not None
                else {},
                accelerate_left=configured.found.what_holds_programs(settings.line_length)
                if configured is not None
                else "",
                with_files=configured.found.calls if configured is not None else frozenset(),
            )
    for path, reason in found.unread:
        result.problems.append(Problem(found.display(path), f"cannot be read: {reason}"))
    floors = None
    if edit and piped is None and (result.changes or configured is not None):
        from fsdp_migrate.cli.requirements import CODE, Floors

        if chosen.has(CODE):
            floors = Floors([Path.cwd() / p for p in paths], settings.target, found.display)
            floors.raise_in(result)
            every = (*found.candidates, *found.others, *map(Path, found.library))
            floors.name_loads([path for path in every if path.suffix == ".py"], result)
    if configured is not None:
        configured.decide_in(result, {})
        if floors is not None:
            floors.name_for_settings(result)
        for path in found.configurations:
            if found.display(path) in result.remarks:
                found.commented[path] = found.configurations[path]
    return Run(settings, found, result, time.perf_counter() - started, word, floors, configured)


def _python(found: ProjectFiles) -> Iterator[tuple[Path, bytes]]:
    """All Python files under the paths given, one after the other."""
    yield from found.candidates.items()
    yield from found.others.items()
    for path in map(Path, found.library):
        with suppress(OSError):
            yield path, path.read_bytes()


def _check_codes(codes: Sequence[str], origin: str, settings: config.Config) -> None:
    known = [page.code for page in pages.pages(settings.rule_paths)] if codes else []
    for code in codes:
        if not code or not any(k.startswith(code) for k in known):
            raise ConfigError(
                f"{origin}no rule's code is or begins with {code!r}; 'fsdp-migrate explain' "
                "lists them"
            )


def start(paths: Sequence[Path]) -> Path:
    """Where the configuration of a run is looked for.

    Raises:
        PathProblem: a path cannot be used.
    """
    taken, _ = project_paths.accept(paths)
    return taken[0] if taken else Path.cwd()


def trusting(paths: Sequence[Path], trust_rules: bool, work: Callable[[], int]) -> int:
    """The exit code of ``work``, done apart where it runs rules of the project's own."""
    try:
        project = start(paths)
    except InputError as error:
        console.problem(str(error))
        return BAD
    return trust.run_command(project, trust_rules, work)


def cores() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _engine(
    found: ProjectFiles,
    settings: config.Config,
    chosen: Chosen,
    rules: Sequence[Path],
    *,
    edit: bool,
    partial: bool,
    jobs: int,
    seen: Seen | None,
    hazards: bool,
    mend: bool,
    accelerate: Mapping[str, Mapping[str, object]],
    accelerate_left: str,
    with_files: frozenset[tuple[Path, int]],
) -> Result:
    # Loading the engine takes longer than finding out that there is nothing for it to do.
    from fsdp_migrate.analysis.module import Library
    from fsdp_migrate.discovery import own_imports
    from fsdp_migrate.migration import engine
    from fsdp_migrate.planning import rule
    from fsdp_migrate.planning.seen import Seen
    from fsdp_migrate.syntax.source import Source, SourceError

    @cache
    def load(path: Path) -> Source | None:
        try:
            return Source.decode(path.read_bytes(), path=path, display=found.display(path))
        except (SourceError, OSError):
            return None

    def read(path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError:
            return b""

    def work() -> Result:
        display = {p: found.display(p) for p in (*found.candidates, *found.others)}
        sources, problems = engine.read(found.candidates, display)
        others, unread = engine.read(found.others, display)
        parsed = {source.path for source in others}
        meant = frozenset(str(p) for p in found.others if p not in parsed and p.suffix == ".py")
        library = Library(
            frozenset(map(Path, found.library)),
            load,
            read,
            found.root,
            unread=meant,
            joined=frozenset(found.joined),
            configurations=lambda: found.configured,
            documents=lambda: found.documents,
            pinned=lambda name, path: releases.pinned(name, path, settings.root),
            accelerate=accelerate,
            accelerate_left=accelerate_left,
            with_files=with_files,
        )
        try:
            result = engine.rewrite([*sources, *others], options, registry, library, edit=edit)
        except Exception as error:
            result = Result(problems=[_defect(error, rules)])
        result.problems[:0] = problems
        found.take(result.of_models)
        if result.decisions:  # else a file without FSDP that does not parse is not our business
            result.not_followed += [NotFollowed(p.display, p.line, UNREAD) for p in unread]
            every = [*found.candidates, *found.others, *map(Path, found.library)]
            for path, line, name in own_imports.leading_nowhere(
                [*found.candidates], [p for p in every if p.suffix == ".py"], found.root
            ):
                why = LEADING_NOWHERE.format(name=name)
                result.not_followed.append(NotFollowed(found.display(path), line, why))
        return result

    options = engine.Options(
        settings.target,
        chosen.select,
        chosen.ignore,
        chosen.leave,
        line_length=settings.line_length,
        single_line_imports=settings.imports.single_line,
        first_party=settings.imports.first_party,
        published=settings.is_published(),
        partial=partial,
        jobs=jobs,
        seen=seen or Seen(),
        hazards=hazards,
        mend=mend,
    )
    registry = rule.load(rules)
    from fsdp_migrate import workers

    try:
        return headroom.with_deep_stack(work)
    except KeyboardInterrupt:
        workers.stop()
        raise


def _defect(error: Exception, rule_paths: Sequence[Path]) -> Problem:
    """What a crash of ours, or of a user's rule, looks like to the user: one line, not a trace."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if any(Path(f.filename).is_relative_to(p) for p in rule_paths)]
    frame = (theirs or frames)[-1]
    what = f"{type(error).__name__}: {error}"
    return Problem(config.shown(Path(frame.filename)), what, frame.lineno or 0, ours=not theirs)
