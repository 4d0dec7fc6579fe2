"""Say a sharding strategy with `reshard_after_forward` and a mesh."""

from fsdp_migrate.families.wrapping import strategy
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule

RULE = Rule(
    code="FSDP201",
    name="sharding_strategy",
    handles=(
        "FullyShardedDataParallel(sharding_strategy=)",
        "ShardingStrategy",
        "annotation(ShardingStrategy)",
        "parameter for the strategy",
    ),
)


def decide(site: Site, study: Study) -> Decision:
    if site.construct.is_constructor:
        return strategy.decide_argument(site, study, RULE.code)
    if site.construct == strategy.PARAMETER:
        return strategy.decide_parameter(site, study, RULE.code)
    return strategy.decide_mention(site, study, RULE.code)
