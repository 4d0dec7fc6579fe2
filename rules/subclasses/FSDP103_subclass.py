"""Make subclasses of `FullyShardedDataParallel` functions, or modules around the sharded one."""

from dataclasses import replace

from fsdp_migrate.families.subclasses import forwarding_subclasses, staying_classes
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule

RULE = Rule(code="FSDP103", name="subclass", handles=("class(FullyShardedDataParallel)",))


def decide(site: Site, study: Study) -> Decision:
    left = forwarding_subclasses.leave_subclass(site, study)
    if site.node in study.constructors:
        return left
    met = staying_classes.met_with(site, study)
    return replace(left, models=met, quiet=True) if met else left
