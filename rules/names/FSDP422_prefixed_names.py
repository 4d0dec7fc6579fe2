"""Mark tests of names that FSDP1 had put its own part into."""

from fsdp_migrate.families.names import prefixed_names
from fsdp_migrate.families.parameters.parameter_owners import models_concerned
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule

RULE = Rule(
    code="FSDP422",
    name="prefixed_names",
    handles=("prefixed name",),
    finders=(Finder(100, prefixed_names.find_prefixed_names),),
)


REVIEW = (
    "FSDP1's names had _fsdp_wrapped_module. in them here, so that this may have matched others; "
    "now it goes by the plain names"
)


def decide(site: Site, study: Study) -> Decision:
    return study.rewritten(
        site,
        RULE.code,
        "kept, with other names",
        models=models_concerned(site, study),
        review=REVIEW,
    )
