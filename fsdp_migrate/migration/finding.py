"""Find every site of a project, and register its constructors."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.discovery import progress
from fsdp_migrate.families.subclasses import forwarding_subclasses
from fsdp_migrate.families.wrapping import (
    chosen_classes,
    fully_sharded,
    keyword_dictionaries,
    known_contexts,
    plugin_settings,
    returned_dictionaries,
    second_wrappers,
    taken_entries,
    wrap_contexts,
)
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1 import model_attributes, references, spelled_names
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning import branches, string_references, support_library
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor

MODELS = frozenset(
    Construct(kind, fsdp1.FSDP)
    for kind in (
        ConstructKind.CONSTRUCTOR,
        ConstructKind.PARTIAL,
        ConstructKind.CLASS,
        ConstructKind.VALUE,
    )
)
CALLS = frozenset(c for c in MODELS if c.kind in {ConstructKind.CONSTRUCTOR, ConstructKind.PARTIAL})
INSTANCE = Construct(ConstructKind.ISINSTANCE, fsdp1.FSDP)


def find(study: Study) -> tuple[list[Site], set[ast.AST]]:
    """Every site, constructors registered; and every node that is a reference."""
    known = study.found is not None
    found, used = find_constructors(study)
    if not known:
        named = [s for m in study.project.modules for s in string_references.find(study, m)]
        uses_fsdp1 = bool(found or study.outdated) or references.is_imported(study.project)
        uses_fsdp1 = uses_fsdp1 or not all(map(string_references.is_mention, named))
        referring = {site.module for site in found}
        found += named if uses_fsdp1 else []
        finders = study.registry.finders(makes_models=bool(study.constructors))
        makes_models = any(s.construct in MODELS for s in found) or bool(study.constructors)
        # What an earlier run wrote answers for itself.
        modules = [m for m in study.project.modules if not support_library.is_ours(m)]
        names = [module.display for module in modules]
        for module in progress.through("looking through", modules, names):
            if makes_models or module in referring:
                found += model_attributes.methods(
                    study.tracer,
                    module,
                    has_fsdp=module in referring,
                    makes_models=bool(study.constructors),
                )
            found += string_references.in_annotations(study, module)
            has_models = bool(study.constructors)
            found += spelled_names.commands(study.project, module, has_models=has_models)
            found += (s for f in finders if f.in_file is not None for s in f.in_file(study, module))
            if study.constructors:
                found += string_references.attributes(study, module, has_fsdp=module in referring)
        of_all = (s for f in finders if f.in_project is not None for s in f.in_project(study))
        found += (site for site in of_all if not support_library.is_ours(site.module))
        # A library's own setting may be all that there is of FSDP1.
        for module in modules if uses_fsdp1 or found else ():
            found += spelled_names.strings(module)
            found += string_references.in_bytes(module)
        if study.constructors:
            found += _versions(found, study)
        found += _outdated_methods(referring, study)
        found = list(_settled_by_run(running(_one_a_place(found), study), study))
        study.found = found, used
        doubted = (s for s in found if s.doubt and s.construct.attribute in fsdp1.ONLY_MODELS)
        study.doubtful.update(s.receiver for s in doubted if s.receiver is not None)
    found = known_contexts.as_constructors(found, study)
    study.subclassed = any(map(forwarding_subclasses.is_subclass, found))
    values = [s for s in found if s.construct == chosen_classes.VALUE and not s.doubt]
    if values:
        first = min(values, key=lambda s: (s.module.path, s.position))
        study.handed_on = f"{first.module.path.name}:{first.position[0]}"
    for site in found:
        branch = _branch(site, study)
        if site.construct in {branches.FSDP1_ONLY, branches.OTHERS}:
            branch = branches.asked(site, study.project)
        if branch is not None and not _builds_models(branch, study):
            study.branches.append(branch)
    return found, used


def find_constructors(study: Study) -> tuple[list[Site], set[ast.AST]]:
    """The sites that names of FSDP1 are, constructors registered, and every such reference; all
    sites once they are known."""
    found, used = study.found or _references(study)
    found = chosen_classes.as_constructors(running(found, study))
    for site in found:
        if site.construct in CALLS:
            constructor = Constructor.read(site.call, site.module, site.reference)
            chosen_classes.mark_as_chosen(constructor)
            if is_unsure(site, study):
                constructor.problem, constructor.is_wrong = "its class is not known", True
            study.constructors[site.call] = constructor
        elif forwarding_subclasses.is_subclass(site) and not is_unsure(site, study):
            forwarding_subclasses.register(site, study)
    found = wrap_contexts.register_contexts(found, study)
    _register_arguments(study)
    return found, used


def _register_arguments(study: Study) -> None:
    """What constructors are given from elsewhere, and what that says of them."""
    keyword_dictionaries.register(study)
    returned_dictionaries.register(study)
    taken_entries.register(study)
    second_wrappers.register(study)
    plugin_settings.set_apart(study)


def _one_a_place(found: list[Site]) -> list[Site]:
    """One site a place and construct, however many finders see it; those that only may be one
    give way to what another finder knows."""
    sure = {site.reference for site in found if not site.doubt}
    told = [site for site in found if not site.doubt or site.reference not in sure]
    first = {(site.reference, site.construct): site for site in reversed(told)}
    return [site for site in told if first[site.reference, site.construct] is site]


def _settled_by_run(found: list[Site], study: Study) -> Iterator[Site]:
    """The sites, of which those that may be on a model are or are none where a run has shown it."""
    for site in found:
        receiver, module = site.receiver, site.module
        told = (
            study.seen.settled_at(receiver, module) if receiver is not None and site.doubt else None
        )
        if receiver is not None and study.seen.shown_at(receiver, module):
            study.seen.models.add(receiver)
        if told is not False:
            yield replace(site, doubt="") if told else site


def running(found: list[Site], study: Study) -> list[Site]:
    """The sites that some torch from the target on runs; the others are kept apart.

    What is done there is no reason for anything elsewhere.
    """
    older = study.project.outdated
    if not older:
        return found
    study.outdated += [s for s in found if s.reference in older]
    return [s for s in found if s.reference not in older]


def _outdated_methods(referring: set[Module], study: Study) -> Iterator[Site]:
    """What is done to models where no torch from the target on gets."""
    older = study.project.outdated
    if not older:
        return
    tracer = Tracer(study.project)
    tracer.outdated = ()
    attributes = {node for node in older if isinstance(node, ast.Attribute)}
    for module in study.project.modules if attributes else ():
        if not attributes.isdisjoint(module.table.attributes):
            yield from model_attributes.methods(
                tracer, module, has_fsdp=module in referring, among=attributes
            )


def _versions(found: Sequence[Site], study: Study) -> list[Site]:
    """The versions of FSDP that stand in branches for FSDP1's models."""
    further: list[Site] = []
    for site in found:
        branch = _branch(site, study)
        if branch is not None and not _builds_models(branch, study):
            further += branches.versions(branch, site.module, study.tracer)
    return further


def _branch(site: Site, study: Study) -> branches.Branch | None:
    """The branch for FSDP1's models beside one for FSDP2's, where a site asks for them."""
    asked = site.construct == INSTANCE and not is_unsure(site, study)
    return branches.of(site, study.project) if asked else None


def _references(study: Study) -> tuple[list[Site], set[ast.AST]]:
    found: list[Site] = []
    used: set[ast.AST] = set()
    lent = references.lent(study.project)
    for module in study.project.modules:
        known = lent is None or module.mentions(*fsdp1.WORDS)
        if not known and lent is not None and not references.borrows(module, lent):
            continue
        for node, canonical in references.references(study.project, module):
            used.add(node)
            site = references.of_alias(references.classify(module, node, canonical), study.project)
            found += [site] if site is not None else []
    return found, used


def _builds_models(branch: branches.Branch, study: Study) -> bool:
    """Whether models are made in the code that goes, of FSDP1 or by now of FSDP2."""
    inside = branches.builds(branch)
    sharded = (sharding.call for sharding in fully_sharded.shardings(study))
    return not inside.isdisjoint(study.constructors) or any(call in inside for call in sharded)


def is_unsure(site: Site, study: Study) -> bool:
    """Whether what a site refers to may be something else than FSDP1's."""
    unsure = study.project.look_alikes(site.reference, site.module)
    return bool(unsure) or string_references.is_unsure(site, study)
