"""Sources in, outcomes out: runs every step from reading to checking. No printing, no writing."""

from __future__ import annotations

import ast
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from packaging.version import Version

from fsdp_migrate import workers
from fsdp_migrate.analysis.module import Library, Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.migration import components, decide, partial
from fsdp_migrate.planning import pages, rule, support_file
from fsdp_migrate.planning.context import Failure, Study, sentences
from fsdp_migrate.planning.edits import Edit, Mark, Support
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.result import Problem, Result
from fsdp_migrate.planning.rule import Registry
from fsdp_migrate.planning.target import DEFAULT_TARGET
from fsdp_migrate.rewriting import cells, check
from fsdp_migrate.syntax import notebook
from fsdp_migrate.syntax.source import Source, SourceError

MANY = 24  # edited files that are worth several processes

UNPROVED = (
    "no place is known for the support module from which this file, and the files that share "
    "its classes, import it in every way that they are loaded",
    "load each file by one name only, as a script or as part of its package, or list the package "
    "in pyproject.toml, and run again",
)

CARRIAGE_RETURNS = "its lines end in a carriage return alone; convert them, and run again"

Key = tuple[Path, tuple[int, int], str]


def key(decision: Decision) -> Key:
    """What tells a decision from the others of a run."""
    site = decision.site
    return site.module.path, site.position, site.construct


@dataclass(frozen=True)
class Options:
    target: Version = DEFAULT_TARGET
    select: frozenset[str] = frozenset()  # rule codes or prefixes; empty means all
    ignore: frozenset[str] = frozenset()
    markers: bool = True
    line_length: int = 100
    partial: bool = False  # guards where left sites would hold a model back
    refused: frozenset[Key] = frozenset()  # decisions that a review did not take
    unproved: frozenset[Path] = frozenset()  # files in which no import of support is known to work
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
            if path.suffix == notebook.SUFFIX:
                sources += cells.read(data, path, shown, files)
            else:
                sources.append(Source.parse(data, path=path, display=shown))
        except notebook.NotebookError as error:
            problems.append(Problem(shown, error.message, error.line, cell=error.cell))
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
    split = components.split(Project(sources, library))
    found = {part: _rewrite(part, options, registry, edit=edit) for part in split}
    if len(split) > 1:
        # What is left for a reason of its own may concern models of the same repository.
        troubled = {
            d.site.module.path
            for result in found.values()
            for d in result.decisions
            if d.outcome is Outcome.LEFT and not (d.held or d.outdated)
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
    return results[0] if len(results) == 1 else _together(results)


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
        sum(r.modules for r in results),
        [d for r in results for d in r.proposed],
    )

    def again(refused: frozenset[Key], *, settle: bool = True) -> Result:
        return _together([r.again(refused, settle=settle) for r in results if r.again is not None])

    result.again = again
    return result


def _rewrite(project: Project, options: Options, registry: Registry, *, edit: bool) -> Result:
    result = _attempt(project, options, registry, edit=edit)
    known = result.proposed

    def again(refused: frozenset[Key], *, settle: bool = True) -> Result:
        chosen = replace(options, refused=refused)
        return _attempt(project, chosen, registry, known=known, settle=settle)

    result.again = again
    return result


def _attempt(
    project: Project,
    options: Options,
    registry: Registry,
    *,
    edit: bool = True,
    known: Sequence[Decision] = (),
    settle: bool = True,
) -> Result:
    """Decide, unless the decisions are ``known``, and edit; ``settle`` asks what is left then."""
    result = Result(modules=len(project.modules))
    odd = {m: CARRIAGE_RETURNS for m in project.modules if _in_carriage_returns(m)}
    dropped: dict[Module, str] = dict(odd)
    unused: list[Decision] = []  # about imports that lose their uses, and stay
    while True:
        decisions = list(known)
        again = len(dropped) > len(odd) or bool(options.unproved)
        if again or not known:
            study = Study(project, registry, options.target, partial=options.partial)
            decisions = decide.decide(study)
            result.proposed = decisions
            if not again:
                result.problems += map(_problem, study.failures.values())
        decisions = _without(sorted([*decisions, *unused], key=decide.order), dropped, options)
        edits = _edits(decisions, options)
        placed = support_file.place(project, {m: e for m, e in edits.items() if m not in odd})
        if placed.unproved:
            options = replace(options, unproved=options.unproved | placed.unproved)
            continue
        failed: dict[Module, str] = {}
        found: list[Decision] = []
        if edit:
            edited = _edit(project, decisions, placed, options, registry, result, settle=settle)
            failed, found = edited
        failed = {m: why for m, why in failed.items() if m not in dropped}
        if found and not failed:
            unused += found
            continue
        unused.clear()
        if not failed:
            result.changes = cells.join_notebooks(project.modules, result.changes)
            result.decisions = decisions
            return result
        # A file that cannot be edited takes the migrations it belongs to down with it.
        for module, message in failed.items():
            dropped[module] = message
            if not message.startswith(check.UNSURE):
                result.problems.append(Problem(module.display, message, ours=True))


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


def _without(
    decisions: list[Decision], dropped: Mapping[Module, str], options: Options
) -> list[Decision]:
    """Turn what must not be applied into *left*: deselected rules, files that failed, what needs
    the support module where no import of it is proved, and what a review refused, the markers of
    what was left before included."""
    changed = bool(dropped)
    result: list[Decision] = []
    for decision in decisions:
        refused = bool(options.refused) and key(decision) in options.refused
        reason, help_ = "", ""
        if decision.site.module in dropped:
            reason = f"this file could not be edited: {dropped[decision.site.module]}"
        elif not _selected(decision.code, options):
            reason = f"{decision.code} is not selected"
        elif refused:
            reason = "refused in review"
        elif any(
            isinstance(e, Support) and e.module.path in options.unproved for e in decision.edits
        ):
            reason, help_ = UNPROVED
        else:
            reason, help_ = cells.refusal(decision)
        if reason and decision.outcome is not Outcome.LEFT:
            changed = True
            result.append(
                replace(
                    decision,
                    outcome=Outcome.LEFT,
                    message=reason,
                    help=help_,
                    edits=_marked(decision, reason, help_) if help_ else (),
                    quiet=True,
                )
            )
        elif refused or (decision.guard and decision.site.module in dropped):
            edits = () if refused else decision.edits
            result.append(replace(decision, edits=edits, guard=(), guarded=False))
        else:
            result.append(decision)
    return decide.hold_back(result) if changed else result


def _marked(decision: Decision, reason: str, help_: str) -> tuple[Edit, ...]:
    """The marker of a site that is left for what its notebook cannot have."""
    site = decision.site
    return (Mark(site.module, site.node, decision.code, sentences(reason, help_)),)


def _selected(code: str, options: Options) -> bool:
    chosen = not options.select or any(code.startswith(s) for s in options.select)
    return chosen and not any(code.startswith(s) for s in options.ignore)


def _edits(decisions: Sequence[Decision], options: Options) -> dict[Module, list[Edit]]:
    """What is to be done to each file."""
    edits: dict[Module, list[Edit]] = defaultdict(list)
    # Guards first: they stand above whatever else comes before a statement.
    for edit in partial.edits(decisions):
        edits[edit.module].append(edit)
    for decision in decisions:
        for edit in () if decision.guarded else decision.edits:
            if options.markers or not isinstance(edit, Mark):
                edits[edit.module].append(edit)
    return edits


def _edit(
    project: Project,
    decisions: Sequence[Decision],
    placed: support_file.Placed,
    options: Options,
    registry: Registry,
    result: Result,
    *,
    settle: bool = True,
) -> tuple[dict[Module, str], list[Decision]]:
    """Fill ``result.changes``; return the modules whose edits failed, with the reason, and what is
    to be said of imports that nothing uses any more."""
    from fsdp_migrate.rewriting.apply import apply_edits
    from fsdp_migrate.rewriting.edit_plan import EditError

    failed: dict[Module, str] = {}
    renewed: dict[Path, Module] = {}
    result.changes.clear()
    resolved, written = placed.edits, placed.files
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
    answers = workers.each(renew, edited, jobs=options.jobs, least=MANY)
    for module, answer in zip(edited, answers, strict=True):
        if isinstance(answer, workers.Crash):
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
    only_comments = all(isinstance(e, Mark) for each in resolved.values() for e in each)
    if failed or not settle or only_comments:
        return failed, []
    return _unsettled(project, decisions, renewed, written, options, registry)


def _unsettled(
    project: Project,
    decisions: Sequence[Decision],
    renewed: Mapping[Path, Module],
    written: Mapping[Path, bytes],
    options: Options,
    registry: Registry,
) -> tuple[dict[Module, str], list[Decision]]:
    """The modules that a second run would rewrite again, or in which it would find more to leave:
    an edit kept, or made, FSDP1 code that no decision answers for.

    Imports that stay for others have lost their uses only now: what a second run says of them is
    handed back, for this one to say.
    """
    if not renewed:
        return {}, []
    kept = [renewed.get(m.path, m) for m in project.modules if m.path not in written]
    sources = [m.source for m in kept]
    sources += [Source.parse(data, path=path) for path, data in written.items()]
    after = Project(sources, project.library, [*kept, *project.read])
    after.islands = project.islands
    after.version_tests = project.version_tests  # no edit changes what torch is compared with
    study = Study(after, registry, options.target)
    again: dict[Path, str] = {}
    unused: list[Decision] = []
    refused = {(path, construct) for path, _, construct in options.refused}
    remaining = Counter(d.site.module.path for d in decisions if _stays(d))
    for decision in _without(decide.decide(study), {}, replace(options, refused=frozenset())):
        path = decision.site.module.path
        if decision.site.construct.startswith("import("):
            unused += _as_before(decision, project, [*decisions, *unused])
            continue
        if (path, decision.site.construct) in refused:
            continue
        if decision.site.receiver is not None and not study.constructors:
            continue  # a method of what may be any object, once no model is FSDP1's
        if _stays(decision):
            remaining[path] -= 1
            if remaining[path] < 0:
                line = decision.site.position[0]
                again.setdefault(
                    path, f"an edit left FSDP1 code behind (line {line} of the result)"
                )
        elif decision.outcome is not Outcome.LEFT:
            again[path] = f"a second run would rewrite it again ({decision.code})"
    failed = {m: again[m.path] for m in project.modules if m.path in again and m.path in renewed}
    return failed, unused


def _as_before(
    decision: Decision, project: Project, decisions: Sequence[Decision]
) -> Iterator[Decision]:
    """What is left of an edited file's imports, for the import as it stood before the edits.

    Nothing where that has a decision already.
    """
    path, construct, name = decision.site.module.path, decision.site.construct, _name(decision.site)
    said = {d.site.node: d for d in decisions if d.site.construct == construct}
    if decision.outcome is not Outcome.LEFT or any(
        d.outcome is Outcome.LEFT and d.site.module.path == path and _name(d.site) == name
        for d in said.values()
    ):
        return
    for module in project.modules:
        for binding in module.table.imports if module.path == path else ():
            node = binding.node
            same = f"import({fsdp1.canonical(binding.qualified)})" == construct
            if same and binding.name == name and isinstance(node, ast.alias) and node not in said:
                left = replace(decision, site=Site(construct, module, node, node))
                marker = _marked(left, left.message, left.help) if decision.edits else ()
                yield replace(left, edits=marker)
                return


def _name(site: Site) -> str:
    """The name that an import gives."""
    assert isinstance(site.node, ast.alias)
    return site.node.asname or site.node.name


def _stays(decision: Decision) -> bool:
    """Whether a decision answers for code that a second run finds as it was.

    Not that about an argument: not every form of a constructor has them, and each has the call.
    """
    construct = decision.site.construct
    if construct.startswith(f"{fsdp1.FSDP}(") and construct.endswith("=)"):
        return False
    return decision.outcome is Outcome.LEFT or decision.kept
