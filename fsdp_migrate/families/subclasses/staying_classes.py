"""Classes derived from FSDP1's that stay as they are, and what belongs to their models.

Such a model stays FSDP1, and so must all that is done to it, and its parts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.values import Class
from fsdp_migrate.families.subclasses.forwarding_subclasses import is_subclass
from fsdp_migrate.families.subclasses.subclass_instances import class_at, instance_calls
from fsdp_migrate.families.wrapping import vocabulary
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1 import model_values
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.syntax.trees import FUNCTIONS

ASKED = frozenset(
    Construct(kind, fsdp1.FSDP)
    for kind in (
        ConstructKind.ISINSTANCE,
        ConstructKind.HASATTR,
        ConstructKind.LISTED,
        ConstructKind.MATCHED,
    )
)
GIVEN = 2  # the first arguments, of which one is a static's model


def decide_use(site: Site, study: Study) -> Decision | None:
    """Left, where the model is, or may be, of such a class."""
    asked = _asked(site) if study.subclassed and not site.doubt else []
    if not asked or not any(_stay(study)):
        return None
    made = [
        model
        for node in asked
        for model in model_values.models(study.values(node, site.module), study.tracer)
    ]
    if made and all(any(study.made_by(model)) for model in made):
        return None
    if not made and not any(_is_taken(node, site, study) for node in asked):
        return None
    constructors = frozenset(c for model in made for c in study.made_by(model))
    if not made:
        constructors = study.models_of_static(None, site.module).constructors
    return study.left(
        site,
        study.registry.rule_for(site.construct).code,
        "the model here may be of a subclass of FSDP, which stays (FSDP103)",
        "migrate that class first",
        models=constructors,
        quiet=bool(constructors),
    )


def _asked(site: Site) -> list[ast.expr]:
    """What something is done to: the receiver, or what one of FSDP1's static methods is given."""
    if site.receiver is not None:
        return [site.receiver]
    call = site.node
    if site.construct.attribute not in fsdp1.STATICS or not isinstance(call, ast.Call):
        return []
    named = [k.value for k in call.keywords if k.arg in {"model", "module"}]
    return named or list(call.args[:GIVEN])


def _is_taken(node: ast.expr, site: Site, study: Study) -> bool:
    """Whether nothing but a type, a test or a static tells that something is a model."""
    if site.receiver is None:
        return True
    return model_values.is_taken_for_model(node, site.module, study.tracer)


def _stay(study: Study) -> Iterator[Class]:
    for site in study.cache(_subclasses) if study.found is not None else ():
        if site.node not in study.constructors:
            yield Class(site.definition, site.module)


def _subclasses(study: Study) -> list[Site]:
    """The sites that are classes derived from FSDP1's."""
    return [site for site in study.found[0] if is_subclass(site)] if study.found else []


def met_with(site: Site, study: Study) -> frozenset[Constructor]:
    """The constructors whose models come where those of the class at a site do: they make its
    parts, or code asks for FSDP1's class, or has settings of FSDP1's, that may be for either."""
    given = frozenset(_given(site, study))
    found = study.found[0] if study.found is not None else ()
    if any(_is_for_either(each, site.definition, given, study) for each in found):
        return study.every_constructor
    return parts_of(class_at(site), study)


def _given(site: Site, study: Study) -> Iterator[ast.AST]:
    """Where the values are made that instances of the class are given."""
    for call, module in instance_calls(site, study):
        for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
            for value in study.values(argument, module):
                node = getattr(value, "node", None)
                if node is not None:
                    yield node


def _is_for_either(
    site: Site, definition: ast.ClassDef, given: frozenset[ast.AST], study: Study
) -> bool:
    around = (site.node, *site.module.table.ancestors(site.node))
    if site.construct in ASKED:
        if definition in around:
            return False
        asked = site.node.args[:1] if isinstance(site.node, ast.Call) else []
        return not asked or not study.models(asked[0], site.module).certain
    is_setting = site.construct.owner in vocabulary.SETTINGS
    if not is_setting or site.construct.kind in {ConstructKind.IMPORT, ConstructKind.ANNOTATION}:
        return False
    if site.node in given:
        return True
    return site.node not in study.conversions and study.constructors.keys().isdisjoint(around)


def parts_of(cls: Class, study: Study) -> frozenset[Constructor]:
    """The constructors that the class's own methods get to: they make parts of its models."""
    return frozenset(c for c in study.every_constructor if _is_called_from(c, cls, study))


def _is_called_from(constructor: Constructor, cls: Class, study: Study) -> bool:
    waiting = [(constructor.node, constructor.module)]
    seen: set[ast.AST] = set()
    while waiting:
        node, module = waiting.pop()
        for parent in module.table.ancestors(node):
            if parent is cls.node:
                return True
            if isinstance(parent, FUNCTIONS) and parent not in seen:
                seen.add(parent)
                callers = study.tracer.callers(parent, module)
                waiting += [(caller.call, caller.module) for caller in callers]
    return False
