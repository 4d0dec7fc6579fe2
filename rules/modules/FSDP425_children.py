"""Go over the children of a sharded model."""

from fsdp_migrate.families.modules import wrapper_children
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule

RULE = Rule(
    code="FSDP425",
    name="children",
    handles=("children of a model",),
    finders=(Finder(177, wrapper_children.find_children),),
)

OWN = "FSDP1's wrapper had one child, the module inside it; these are that module's own now"


def decide(site: Site, study: Study) -> Decision:
    models = study.models(site.subject, site.module).constructors
    return study.kept_as_is(site, RULE.code, "kept", models=models, review=OWN)
