"""States that DCP reads and nothing loads."""

from fsdp_migrate.families.checkpoints import dcp_reads
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule

RULE = Rule(
    code="FSDP313",
    name="unloaded_reads",
    handles=("state that is read and not loaded",),
    finders=(Finder(127, dcp_reads.find_unloaded_reads),),
)

REVIEW = (
    "nothing loads the state that is read here: FSDP1's was a copy, so that nothing changed; now "
    "it holds the weights and the optimizer's tensors themselves, which change, while settings "
    "such as the learning rate do not; call set_state_dict with it"
)


def decide(site: Site, study: Study) -> Decision:
    models = study.models(site.subject, site.module).constructors or study.every_constructor
    return study.kept_as_is(site, RULE.code, "kept: a read", models=models, review=REVIEW)
