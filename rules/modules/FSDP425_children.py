"""Go over the children of a sharded model."""

from fsdp_migrate.families.modules import wrapper_children, wrappers_counted
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule

RULE = Rule(
    code="FSDP425",
    name="children",
    handles=("children of a model", "number of a model's modules"),
    finders=(
        Finder(177, wrapper_children.find_children),
        Finder(178, wrappers_counted.find_counts),
    ),
)

OWN = "FSDP1's wrapper had one child, the module inside it; these are that module's own now"

COUNTED = (
    "FSDP1's wrappers, of the model and of each unit, were counted among its modules: there are "
    "fewer now, and they have other places"
)


def decide(site: Site, study: Study) -> Decision:
    models = study.models(site.subject, site.module).constructors
    review = COUNTED if site.construct == wrappers_counted.COUNT else OWN
    return study.kept_as_is(site, RULE.code, "kept", models=models, review=review)
