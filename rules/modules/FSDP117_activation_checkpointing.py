"""Activation checkpointing goes in before the sharding."""

from packaging.version import Version

from fsdp_migrate.families.modules import checkpointing
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule

RULE = Rule(
    code="FSDP117",
    name="activation-checkpointing",
    handles=("late activation checkpointing",),
    finders=(Finder(50, checkpointing.find_late_checkpointing),),
)


FIXED = Version("2.11")


def decide(site: Site, study: Study) -> Decision:
    models = checkpointing.checkpointed_models(site.subject, site.module, study)
    statement = site.module.table.statement(site.node)
    if any(plan.behind is statement for plan in study.plans.values()):
        return study.rewritten(site, RULE.code, "comes before the sharding", models=models)
    review = ""
    if study.target < FIXED and checkpointing.may_run_twice(models, study):
        review = (
            "activation checkpointing goes around the sharded modules here, and before torch 2.11 "
            "a module that runs twice before its backward can fail so; apply it before fully_shard"
        )
    return study.rewritten(
        site, RULE.code, "kept, around the sharded modules", models=models, review=review
    )
