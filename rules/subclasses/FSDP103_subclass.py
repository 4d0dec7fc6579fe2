"""Make subclasses of `FullyShardedDataParallel` functions, or modules around the sharded one."""

from fsdp_migrate.families.subclasses import forwarding_subclasses
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule

RULE = Rule(code="FSDP103", name="subclass", handles=("class(FullyShardedDataParallel)",))


def decide(site: Site, study: Study) -> Decision:
    return forwarding_subclasses.leave_subclass(site, study)
