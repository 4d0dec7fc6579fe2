"""Sources in, outcomes out: runs every step from reading to checking. No printing, no writing."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from fsdp_migrate import check, decide, pages, pool, rule, support
from fsdp_migrate.proposal import Edit, Mark
from fsdp_migrate.result import Problem, Result
from fsdp_migrate.rule import Outcome, Registry
from fsdp_migrate.source import Source, SourceError
from fsdp_migrate.study import DEFAULT_TARGET, Decision, Failure, Study
from fsdp_migrate.trace.project import Library, Module, Project

MANY = 24  # edited files that are worth several processes


@dataclass(frozen=True)
class Options:
    target: Version = DEFAULT_TARGET
    select: frozenset[str] = frozenset()  # rule codes or prefixes; empty means all
    ignore: frozenset[str] = frozenset()
    markers: bool = True
    line_length: int = 100
    jobs: int = 1  # processes that edit files


def read(
    files: Mapping[Path, bytes], display: Mapping[Path, str]
) -> tuple[list[Source], list[Problem]]:
    """Parse every file that is Python; say what is wrong with the others."""
    sources: list[Source] = []
    problems: list[Problem] = []
    for path, data in files.items():
        shown = display.get(path, path.as_posix())
        try:
            sources.append(Source.parse(data, path=path, display=shown))
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
    project = Project(sources, library)
    result = Result(modules=len(project.modules))
    dropped: dict[Module, str] = {}
    while True:
        study = Study(project, registry, options.target)
        decisions = decide.decide(study)
        if not dropped:
            result.problems += map(_problem, study.failures.values())
        decisions = _without(decisions, dropped, options)
        failed = _edit(project, decisions, options, registry, result) if edit else {}
        failed = {m: why for m, why in failed.items() if m not in dropped}
        if not failed:
            result.decisions = decisions
            return result
        # A file that cannot be edited takes the migrations it belongs to down with it.
        for module, message in failed.items():
            dropped[module] = message
            result.problems.append(Problem(module.display, message, ours=True))


def _problem(failure: Failure) -> Problem:
    """What a rule's failure looks like to the user: one line, the rest of the run goes on."""
    error, failed = failure.error, failure.rule
    message = f"{failed.code} failed here: {type(error).__name__}: {error}"
    ours = failed.path.resolve().parent == pages.bundled()
    return Problem(failure.site.module.display, message, failure.site.position[0], ours=ours)


def _without(
    decisions: list[Decision], dropped: Mapping[Module, str], options: Options
) -> list[Decision]:
    """Turn what must not be applied into *left*: deselected rules, files that failed."""
    changed = False
    result: list[Decision] = []
    for decision in decisions:
        reason = ""
        if decision.site.module in dropped:
            reason = f"this file could not be edited: {dropped[decision.site.module]}"
        elif not _selected(decision.code, options):
            reason = f"{decision.code} is not selected"
        if reason and decision.outcome is not Outcome.LEFT:
            changed = True
            result.append(
                replace(
                    decision,
                    outcome=Outcome.LEFT,
                    message=reason,
                    help="",
                    edits=(),
                    quiet=True,
                )
            )
        else:
            result.append(decision)
    return decide.hold_back(result) if changed else result


def _selected(code: str, options: Options) -> bool:
    chosen = not options.select or any(code.startswith(s) for s in options.select)
    return chosen and not any(code.startswith(s) for s in options.ignore)


def _edit(
    project: Project,
    decisions: Sequence[Decision],
    options: Options,
    registry: Registry,
    result: Result,
) -> dict[Module, str]:
    """Fill ``result.changes``; return the modules whose edits failed, with the reason."""
    from fsdp_migrate.edits import EditError, apply_edits

    edits: dict[Module, list[Edit]] = defaultdict(list)
    for decision in decisions:
        for edit in decision.edits:
            if options.markers or not isinstance(edit, Mark):
                edits[edit.module].append(edit)
    failed: dict[Module, str] = {}
    renewed: dict[Path, Module] = {}
    result.changes.clear()
    resolved, written = support.place(project, edits)
    edited = [module for module in project.modules if resolved.get(module)]
    local = project.packages if edited else frozenset()
    asked_for = {module: project.asked_for(module) for module in edited}

    def renew(module: Module) -> tuple[bytes, str, Module | None]:
        """The new bytes and what is wrong with them; the new module when it is made here."""
        try:
            new = apply_edits(
                module,
                resolved[module],
                line_length=options.line_length,
                local=local,
                asked_for=asked_for[module],
            )
        except EditError as error:
            return b"", str(error), None
        if new == module.source.data:
            return new, "", None
        after = check.parse(module, new)
        if isinstance(after, str):
            return new, after, None
        # Between processes only bytes travel: trees are dearer to send than to make.
        here = after if os.getpid() == process else None
        return new, check.defect(module, after, options.target), here

    process = os.getpid()
    answers = pool.each(renew, edited, jobs=options.jobs, least=MANY)
    for module, answer in zip(edited, answers, strict=True):
        if isinstance(answer, pool.Crash):
            failed[module] = "the process that edited it ended"
            continue
        new, defect, made = answer
        if defect:
            failed[module] = defect
        elif new != module.source.data:
            after = made or check.parse(module, new)
            assert isinstance(after, Module)
            result.changes[module.path] = new
            renewed[module.path] = after
    result.changes.update(written)
    return failed or _unsettled(project, decisions, renewed, written, options, registry)


def _unsettled(
    project: Project,
    decisions: Sequence[Decision],
    renewed: Mapping[Path, Module],
    written: Mapping[Path, bytes],
    options: Options,
    registry: Registry,
) -> dict[Module, str]:
    """The modules that a second run would rewrite again, or in which it would find more to leave.

    Either means that an edit kept, or made, FSDP1 code that no decision answers for.
    """
    if not renewed:
        return {}
    kept = [renewed.get(m.path, m) for m in project.modules if m.path not in written]
    sources = [m.source for m in kept]
    sources += [Source.parse(data, path=path) for path, data in written.items()]
    after = Project(sources, project.library, [*kept, *project.read])
    study = Study(after, registry, options.target)
    again: dict[Path, str] = {}
    remaining = Counter(d.site.module.path for d in decisions if d.outcome is Outcome.LEFT)
    for decision in decide.decide(study):
        path = decision.site.module.path
        if decision.site.construct.startswith("import("):
            continue  # a name kept for other modules
        if decision.outcome is Outcome.LEFT or not _selected(decision.code, options):
            remaining[path] -= 1
            if remaining[path] < 0:
                line = decision.site.position[0]
                again.setdefault(
                    path, f"an edit left FSDP1 code behind (line {line} of the result)"
                )
        else:
            again[path] = f"a second run would rewrite it again ({decision.code})"
    return {m: again[m.path] for m in project.modules if m.path in again and m.path in renewed}
