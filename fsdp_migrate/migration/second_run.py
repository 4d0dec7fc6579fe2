"""Whether a second run over the result would find anything to do."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.construct import ConstructKind
from fsdp_migrate.fsdp1.site import ANYWHERE, Site
from fsdp_migrate.migration import decide
from fsdp_migrate.migration.defects import Defect
from fsdp_migrate.migration.selection import Options, marked, without
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Registry
from fsdp_migrate.syntax.source import Source


def unsettled(
    project: Project,
    decisions: Sequence[Decision],
    renewed: Mapping[Path, Module],
    written: Mapping[Path, bytes],
    options: Options,
    registry: Registry,
) -> tuple[dict[Module, Defect], list[Decision]]:
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
    broken = {(path, ANYWHERE, what): why for (path, _, what), why in options.broken.items()}
    study = Study(after, registry, options.target, published=options.published, broken=broken)
    again: dict[Path, Defect] = {}
    unused: list[Decision] = []
    refused = {(path, construct) for path, _, construct in options.refused}
    guarded = {d.site.module.path for d in decisions if d.guard.stands}
    remaining = Counter(
        d.site.module.path
        for d in decisions
        if _stays(d) or (not d.edits and d.site.module.path in guarded)  # left, behind a guard
    )
    for decision in without(decide.decide(study), {}, replace(options, refused={})):
        path = decision.site.module.path
        if decision.site.construct.kind is ConstructKind.IMPORT:
            unused += _as_before(decision, project, [*decisions, *unused])
            continue
        if (path, decision.site.construct) in refused:
            continue
        if decision.site.receiver is not None and not study.constructors:
            continue  # a method of what may be any object, once no model is FSDP1's
        if decision.held and decision.site.construct.name.startswith("torch."):
            continue  # what took FSDP1's place, on what may be another model that is left
        if _stays(decision):
            remaining[path] -= 1
            if remaining[path] < 0:
                line = decision.site.position[0]
                what = f"an edit left FSDP1 code behind (line {line} of the result)"
                again.setdefault(path, Defect(what, decision))
        elif decision.outcome is not Outcome.LEFT:
            what = f"a second run would rewrite it again ({decision.code})"
            again[path] = Defect(what, decision)
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
            same = fsdp1.canonical(binding.qualified) == construct.name
            if same and binding.name == name and isinstance(node, ast.alias) and node not in said:
                left = replace(decision, site=Site(construct, module, node, node))
                marker = marked(left, left.message, left.help) if decision.edits else ()
                yield replace(left, edits=marker)
                return


def _name(site: Site) -> str:
    """The name that an import gives."""
    return site.alias.asname or site.alias.name


def _stays(decision: Decision) -> bool:
    """Whether a decision answers for code that a second run finds as it was.

    Not that about an argument: not every form of a constructor has them, and each has the call.
    """
    construct = decision.site.construct
    if construct.is_constructor and construct.part:
        return False
    return decision.outcome is Outcome.LEFT or decision.kept
