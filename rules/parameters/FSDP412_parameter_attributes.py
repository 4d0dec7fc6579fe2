"""Carry attributes over to the parameters that `fully_shard` makes."""

from fsdp_migrate.families.parameters import attributes
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule

RULE = Rule(
    code="FSDP412",
    name="parameter_attributes",
    handles=("parameter attribute",),
    finders=(
        Finder(
            200,
            in_project=attributes.find_parameter_attributes,
            of_constructor=attributes.attribute_sites,
        ),
    ),
)


def decide(site: Site, study: Study) -> Decision:
    models = attributes.models_concerned(site, study)
    for plan in study.plans.values():
        if plan.constructor in models:
            attributes.carry_attributes_over(plan, study)
    kept = [c for c in models if attributes.keeps_attributes(c, study) is not None]
    return study.rewritten(site, RULE.code, "carried over to the new parameters", models=kept)
