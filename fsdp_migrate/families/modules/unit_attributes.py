"""What a unit of a sharded model is asked for that only FSDP1's wrapper around it had.

In ``for block in model.blocks: group = block.process_group``, where a policy wrapped each block,
``block`` is FSDP1's wrapper. FSDP2 shards the block itself, which has no such attribute.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, cut_off
from fsdp_migrate.families.modules import (
    exact_classes,
    own_classes_of_parts,
    process_groups,
    visited_modules,
)
from fsdp_migrate.families.wrapping import model_contents
from fsdp_migrate.fsdp1.class_questions import classified
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.possible_models import is_asked_for
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Constructor, Decision

RULE = "FSDP406"
CONSTRUCT = Construct.parse("attribute of a unit")
ASKED = Construct.parse("question for an attribute of a unit")
NAMES = frozenset({"process_group", "module"})
OWN_CLASS = (
    "a sharded unit has a class of its own, derived from FSDPModule and the class it had, whose "
    "name begins with FSDP: test with isinstance"
)
NONE_NOW = "this was true of the units that FSDP1 wrapped, and FSDP2's have no such attribute"


def find_unit_attributes(study: Study, module: Module) -> Iterator[Site]:
    """A site for every ``block.process_group`` and ``block.module`` of what a policy may have
    wrapped."""
    for attribute in module.table.attributes_by_name.of(NAMES) if study.constructors else ():
        if not isinstance(attribute.ctx, ast.Load) or study.traced(attribute.value, module):
            continue
        if is_asked_for(attribute, module) or study.cache(_own).get(attribute.attr):
            continue
        if study.tracer.told(attribute.value, module) is None and _units(attribute, study, module):
            yield Site(CONSTRUCT, module, attribute, attribute, attribute.value)
    for call in module.table.calls_by_name.of(("hasattr",)) if study.constructors else ():
        match call.args:
            case [owner, ast.Constant(value=str(name))] if name in NAMES:
                known = study.traced(owner, module) or study.cache(_own).get(name)
                asked = ast.Attribute(owner, name, ast.Load())
                if not known and _units(asked, study, module):
                    yield Site(ASKED, module, call, call, owner)


def _own(study: Study) -> dict[str, bool]:
    """Whether the project's classes that models are made of have such attributes themselves."""
    classes = [
        Class(cls, module)
        for module in study.project.modules
        for cls in module.table.scopes
        if isinstance(cls, ast.ClassDef) and cls in study.cache(exact_classes.sharded_classes)
    ]
    return {name: any(study.tracer.has_attribute(cls, name) for cls in classes) for name in NAMES}


def _units(attribute: ast.Attribute, study: Study, module: Module) -> frozenset[Constructor]:
    """The models of which something may be a unit that a policy wrapped."""
    found = own_classes_of_parts.whole_of(attribute.value, study, module)
    if not found and attribute.attr != "module":  # which other wrappers have as well
        visited = visited_modules.visited_model(attribute.value, study, module, {})
        found = study.models(visited, module).constructors if visited is not None else found
    return frozenset(c for c in found if c.may_have("auto_wrap_policy"))


def decide_unit(site: Site, study: Study) -> Decision:
    if site.construct == ASKED:
        models = study.every_constructor
        return study.kept_as_is(site, RULE, "kept", models=models, review=NONE_NOW)
    models = _units(site.attribute, study, site.module)
    if site.attribute.attr == "process_group":
        return process_groups.decide_group_of_units(site, models, study)
    proposal = study.proposal()
    may_be_other = cut_off(study.values(site.subject, site.module))
    known = not may_be_other and all(_is_in_sight(constructor, study) for constructor in models)
    if not known and access_path(site.subject) is None:
        reason = "an FSDP2 unit has no inner module, and this may be of another class that has one"
        return study.left(site, RULE, reason, "use the unit itself", models=models)
    new = code("{u}", u=site.subject)
    if not known:
        new = code('getattr({u}, "module", {u})', u=site.subject)
    proposal.replace(site.module, site.attribute, new)
    parent = site.module.table.parents[site.attribute]
    asked = isinstance(parent, ast.expr) and classified(parent) is site.attribute
    review = OWN_CLASS if asked else ""
    return study.rewritten(site, RULE, "the unit itself", proposal, models=models, review=review)


def _is_in_sight(constructor: Constructor, study: Study) -> bool:
    """Whether a model is made of the project's classes and torch's alone."""
    if not constructor.has_module:
        return False
    found = model_contents.contents(constructor.wrapped, constructor.module, study)
    return found.complete and all(name.startswith("torch.") for name in found.externals)
