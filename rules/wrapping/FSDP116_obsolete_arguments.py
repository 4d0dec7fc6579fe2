"""Drop constructor arguments that FSDP2 does not need."""

from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule

RULE = Rule(
    code="FSDP116",
    name="obsolete_arguments",
    handles=(
        "FullyShardedDataParallel(use_orig_params=)",
        "FullyShardedDataParallel(limit_all_gathers=)",
    ),
)


def decide(site: Site, study: Study) -> Decision:
    return study.dropped(site, RULE.code, "dropped")
