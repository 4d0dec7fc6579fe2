"""Sources in, outcomes out: runs every step from reading to checking. No printing, no writing."""

from __future__ import annotations

import functools
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from fsdp_migrate import workers
from fsdp_migrate.analysis.module import Library, Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.discovery import progress
from fsdp_migrate.fsdp1.site import Key
from fsdp_migrate.hazards import finding as hazards
from fsdp_migrate.migration import (
    blockers,
    components,
    decide,
    defects,
    markers,
    mending,
    model_files,
    not_followed,
    partial,
)
from fsdp_migrate.migration.defects import Defect
from fsdp_migrate.migration.named_values import name_repeated
from fsdp_migrate.migration.renewing import renewer
from fsdp_migrate.migration.second_run import unsettled
from fsdp_migrate.migration.selection import UNPROVED, Options, key, without
from fsdp_migrate.planning import forms, pages, rule, support_file, wrapped_elsewhere
from fsdp_migrate.planning.context import Failure, Study
from fsdp_migrate.planning.edits import Edit, Mark
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.model import Cause, Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.result import Problem, Result
from fsdp_migrate.planning.rule import Registry
from fsdp_migrate.rewriting import cells, check
from fsdp_migrate.syntax import notebook
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.source import Source, SourceError

__all__ = ["UNPROVED", "Key", "Options", "Result", "key", "read", "rewrite"]

MANY = 24  # edited files that are worth several processes


CARRIAGE_RETURNS = "its lines end in a carriage return alone; convert them, and run again"


def read(
    files: Mapping[Path, bytes], display: Mapping[Path, str]
) -> tuple[list[Source], list[Problem]]:
    """Parse every file that is Python; say what is wrong with the others."""
    sources: list[Source] = []
    problems: list[Problem] = []
    names = [display.get(path, path.as_posix()) for path in files]
    for path, data in progress.through("parsing", files.items(), names):
        shown = display.get(path, path.as_posix())
        try:
            if path.suffix == notebook.SUFFIX:
                sources += cells.read(data, path, shown, files)
            else:
                sources.append(Source.parse(data, path=path, display=shown))
        except notebook.NotebookError as error:
            where = cells.line_in_file(data, error.cell, error.line) if error.cell else 0
            problem = Problem(shown, error.message, error.line, cell=error.cell, file_line=where)
            problems.append(problem)
        except SourceError as error:
            problems.append(Problem(shown, error.message, error.line))
    return sources, problems


def rewrite(
    sources: Iterable[Source],
    options: Options | None = None,
    registry: Registry | None = None,
    library: Library | None = None,
    *,
    edit: bool = True,
) -> Result:
    """Decide every site of a closed set of sources and, with ``edit``, make the new contents."""
    options = options or Options()
    registry = registry or rule.load()
    given = Project(sources, library)
    first = _study(given, options, registry)
    project = model_files.add(first)
    split = components.split(project)
    found = {
        part: _rewrite(part, options, registry, edit=edit, first=first if part is given else None)
        for part in split
    }
    if len(split) > 1:
        # What is left for a reason of its own may concern models of the same repository.
        troubled = {
            d.site.module.path
            for result in found.values()
            for d in result.decisions
            if d.outcome is Outcome.LEFT and d.cause not in {Cause.HELD, Cause.OUTDATED}
        }
        for group in components.together(split, lambda module: module.path in troubled):
            if len(group) > 1:
                whole = components.joined(group)
                found[whole] = _rewrite(whole, options, registry, edit=edit)
                alone = [found.pop(part) for part in group]
                _say_what_goes_alone(found[whole], alone)
    results = list(found.values())
    if all(d.kept for result in results for d in result.decisions):
        for result in results:
            result.decisions = []  # for old checkpoints: nothing is FSDP1 any more
    result = results[0] if len(results) == 1 else _together(results)
    known = {module.path for module in given.modules}
    result.of_models = [m.path for m in project.modules if m.path not in known]
    return result


def _say_what_goes_alone(whole: Result, alone: Sequence[Result]) -> None:
    """Say of what is held back by another part of its repository that it can be migrated alone."""
    where: dict[Path, str] = {}
    for result in alone:
        migrated = {d.site.module for d in result.decisions if d.outcome is not Outcome.LEFT}
        if not any(d.held for d in result.decisions):
            shown = [PurePath(module.display).parent for module in migrated]
            where |= {m.path: os.path.commonpath(shown) or "." for m in migrated}

    def said(decision: Decision) -> Decision:
        alone = where.get(decision.site.module.path)
        if alone is None or not decision.held:
            return decision
        way_out = f"or, if no model of {alone} gets there, run on that by itself"
        return replace(decision, help=f"{decision.help}; {way_out}")

    whole.decisions = list(map(said, whole.decisions))


def _together(results: Sequence[Result]) -> Result:
    """One result of those for the parts of a tree."""
    result = Result(
        sorted((d for r in results for d in r.decisions), key=decide.order),
        {path: data for r in results for path, data in r.changes.items()},
        [problem for r in results for problem in r.problems],
        not_followed=[place for r in results for place in r.not_followed],
        held_back=[each for r in results for each in r.held_back],
        hazards=sorted((h for r in results for h in r.hazards), key=lambda h: h.place),
        modules=sum(r.modules for r in results),
        proposed=[d for r in results for d in r.proposed],
    )

    def again(
        refused: Mapping[Key, str],
        *,
        passed_over: forms.PassedOver = forms.NONE,
        settle: bool = True,
    ) -> Result:
        chosen = [r.again for r in results if r.again is not None]
        return _together([a(refused, passed_over=passed_over, settle=settle) for a in chosen])

    result.again = again
    return result


def _study(project: Project, options: Options, registry: Registry) -> Study:
    return Study(
        project,
        registry,
        options.target,
        partial=options.partial,
        published=options.published,
        passed_over=options.passed_over,
        seen=options.seen,
        broken=options.broken,
    )


def _rewrite(
    project: Project,
    options: Options,
    registry: Registry,
    *,
    edit: bool,
    first: Study | None = None,
) -> Result:
    """``first``: a study of the same project, which has traced some of it."""
    result = _attempt(project, options, registry, edit=edit, first=first)
    known, wrong = result.proposed, result.hazards

    def again(
        refused: Mapping[Key, str],
        *,
        passed_over: forms.PassedOver = forms.NONE,
        settle: bool = True,
    ) -> Result:
        no_more = {
            (path, line) for (path, (line, _)), over in passed_over.items() if forms.AS_SEEN in over
        }
        seen = options.seen.without(no_more) if no_more else options.seen
        chosen = replace(options, refused=refused, passed_over=passed_over, seen=seen)
        if passed_over:
            return _attempt(project, chosen, registry, settle=settle)
        return _attempt(project, chosen, registry, known=known, found=wrong, settle=settle)

    result.again = again
    return result


def _attempt(
    project: Project,
    options: Options,
    registry: Registry,
    *,
    edit: bool = True,
    known: Sequence[Decision] = (),
    found: Sequence[Hazard] = (),
    settle: bool = True,
    first: Study | None = None,
) -> Result:
    """Decide, unless the decisions are ``known``, and the hazards ``found``, and edit; ``settle``
    asks what is left then."""
    result = Result(modules=len(project.modules), hazards=list(found))
    unmended: set[Module] = set()
    odd = {m: CARRIAGE_RETURNS for m in project.modules if _in_carriage_returns(m)}
    dropped: dict[Module, str] = dict(odd)
    unused: list[Decision] = []  # about imports that lose their uses, and stay
    while True:
        decisions = list(known)
        again = len(dropped) > len(odd) or bool(options.unproved or options.broken)
        if again or not (known or found):
            study = first.anew() if first and not again else _study(project, options, registry)
            first = None
            decisions = decide.decide(study)
            result.proposed = decisions
            result.not_followed = not_followed.places(study)
            result.held_back = blockers.held_back(decisions, study)
            if not again:
                _tell_of_study(study, result, options)
        decisions = without(sorted([*decisions, *unused], key=decide.order), dropped, options)
        if again:  # a file that cannot be edited, or has no support, holds more back
            result.held_back = blockers.held_back(decisions, study)
        mended = mending.chosen(result.hazards, unmended | odd.keys(), options)
        edits = _edits(decisions, options, mended)
        placed = support_file.place(project, {m: e for m, e in edits.items() if m not in odd})
        if placed.unproved:
            options = replace(options, unproved={**options.unproved, **placed.unproved})
            continue
        failed: dict[Module, Defect] = {}
        idle: list[Decision] = []
        if edit:
            edited = _edit(project, decisions, placed, options, registry, result, settle=settle)
            failed, idle = edited
        failed = {m: why for m, why in failed.items() if m not in dropped}
        if idle and not failed:
            unused += idle
            continue
        unused.clear()
        if not failed:
            result.changes = cells.join_notebooks(project.modules, result.changes)
            result.decisions = decisions
            result.hazards = [replace(h, is_mended=h in mended) for h in result.hazards]
            return result
        if not failed.keys().isdisjoint(h.module for h in mended):
            unmended |= failed.keys()  # a migration goes before what stood there all along
            continue
        broken = _blame(failed, decisions, project, options, dropped, result)
        options = replace(options, broken={**options.broken, **broken})


def _blame(
    failed: Mapping[Module, Defect],
    decisions: Sequence[Decision],
    project: Project,
    options: Options,
    dropped: dict[Module, str],
    result: Result,
) -> dict[Key, str]:
    """The decisions that made files fail; files of which that is not known are ``dropped``, and
    what is a defect of ours becomes a problem of ``result``."""
    broken: dict[Key, str] = {}
    for module, defect in failed.items():
        tried = functools.partial(_is_sound, module, project, options)
        few = sum(path == module.path for path, *_ in options.broken) < defects.ROUNDS
        blamed = defects.blamed(module, defect, decisions, tried) if few else ()
        new = {d.site.key for d in blamed} - options.broken.keys()
        broken |= dict.fromkeys(new, defect.message)
        if not new:  # the file takes the migrations it belongs to down with it
            dropped[module] = defect.message
        if not defect.message.startswith(check.UNSURE):
            line = min((place[0] for _, place, _ in new), default=0)
            result.problems.append(Problem(module.display, defect.message, line, ours=True))
    return broken


def _tell_of_study(study: Study, result: Result, options: Options) -> None:
    """What no decision changes: rules that failed, and hazards if they are asked for."""
    result.problems += map(_problem, study.failures.values())
    if options.hazards:
        found, failures = hazards.find(study, options.select, options.ignore)
        result.hazards = mending.proved(found, study.project, options)
        result.problems += failures


def _in_carriage_returns(module: Module) -> bool:
    text = module.source.text
    return "\r" in text and "\n" not in text and module.source.excerpt is None


def _problem(failure: Failure) -> Problem:
    """What a rule's failure looks like to the user: one line, the rest of the run goes on."""
    error, failed = failure.error, failure.rule
    message = f"{failed.code} failed here: {type(error).__name__}: {error}"
    ours = failed.path.resolve().is_relative_to(pages.bundled())
    cell, line, _ = failure.site.place
    return Problem(failure.site.module.display, message, line, ours=ours, cell=cell)


def _edits(
    decisions: Sequence[Decision], options: Options, mended: Sequence[Hazard] = ()
) -> dict[Module, list[Edit]]:
    """What is to be done to each file; why something is left is said once in each."""
    edits: dict[Module, list[Edit]] = defaultdict(list)
    said: set[tuple[Module, str]] = set()
    said_of, repeats = markers.said_together(decisions), markers.Repeats()
    # Guards first: they stand above whatever else comes before a statement.
    for edit in partial.edits(decisions):
        edits[edit.module].append(edit)
    for decision in decisions:
        for given in () if decision.guard.stands else decision.edits:
            edit = given
            if isinstance(given, Mark):
                edit = said_of.get(given, given)
                by_library = decision.message.startswith(wrapped_elsewhere.BY_LIBRARY)
                what = (edit.module, edit.sentence if by_library else edit.comment)
                left = decision.outcome is Outcome.LEFT
                repeated = repeats.has(edit, left=left) or what in said
                if left or edit.once:
                    said.add(what)
                if repeated or not options.markers:
                    continue
            edits[edit.module].append(edit)
    for hazard in mended:
        edits[hazard.module] += hazard.edits
    return {module: name_repeated(module, given) for module, given in edits.items()}


def _edit(
    project: Project,
    decisions: Sequence[Decision],
    placed: support_file.Placed,
    options: Options,
    registry: Registry,
    result: Result,
    *,
    settle: bool = True,
) -> tuple[dict[Module, Defect], list[Decision]]:
    """Fill ``result.changes``; return the modules whose edits failed, with the reason, and what is
    to be said of imports that nothing uses any more."""
    failed: dict[Module, Defect] = {}
    renewed: dict[Path, Module] = {}
    result.changes.clear()
    resolved = placed.edits
    edited = [module for module in project.modules if resolved.get(module)]
    renew = renewer(project, {module: resolved[module] for module in edited}, options)
    answers = workers.each(renew, edited, jobs=options.jobs, least=MANY)
    names = [module.display for module in edited]
    for module, answer in zip(progress.through("editing", edited, names), answers, strict=True):
        if isinstance(answer, workers.Crash):
            failed[module] = Defect("the process that edited it ended", crashed=True)
            continue
        new, defect, made = answer
        if defect:
            failed[module] = Defect(defect)
        elif new != module.source.data:
            after = of_kind(made or check.parse(module, new), Module)
            result.changes[module.path] = new
            renewed[module.path] = after
    written = support_file.contents(project, placed.files, renewed)
    result.changes.update(written)
    only_comments = all(isinstance(e, Mark) for each in resolved.values() for e in each)
    if failed or not settle or only_comments:
        return failed, []
    return unsettled(project, decisions, renewed, written, options, registry)


def _is_sound(
    module: Module, project: Project, options: Options, decisions: Sequence[Decision]
) -> bool:
    """Whether the new version of one module passes its check with these decisions."""
    edits = {m: e for m, e in _edits(decisions, options).items() if m is module}
    placed = support_file.place(project, edits)
    if placed.unproved:
        return False
    resolved = {m: e for m, e in placed.edits.items() if m is module and e}
    return not resolved or not renewer(project, resolved, options)(module)[1]
