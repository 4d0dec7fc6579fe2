"""Activation checkpointing goes in before the sharding."""

from packaging.version import Version

from fsdp_migrate.families.modules import checkpointing
from fsdp_migrate.families.precision import precision
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule

RULE = Rule(
    code="FSDP117",
    name="activation-checkpointing",
    handles=("late activation checkpointing", "reentrant activation checkpointing"),
    finders=(
        Finder(50, checkpointing.find_late_checkpointing),
        Finder(51, checkpointing.find_reentrant_checkpointing),
    ),
)


FIXED = Version("2.11")
CASTS_AGAIN = Version("2.13")  # FSDPState._pre_forward in PRE_BACKWARD, pytorch/pytorch#159359


TWICE = (
    "around a sharded module that runs twice before its backward, a backward inside of another "
    "loses gradients: FSDP2 reduces those of the first run alone. With torch's checkpoint and "
    "use_reentrant=False, or CheckpointImpl.NO_REENTRANT, it trains as before"
)


def decide(site: Site, study: Study) -> Decision:
    if site.construct == checkpointing.REENTRANT:
        reached = frozenset(study.reached_from(site.module))
        return study.rewritten(site, RULE.code, "kept", models=reached, review=TWICE)
    models = checkpointing.checkpointed_models(site.subject, site.module, study)
    statement = site.module.table.statement(site.node)
    if any(plan.behind is statement for plan in study.plans.values()):
        return study.rewritten(site, RULE.code, "comes before the sharding", models=models)
    why = ""
    if study.target < CASTS_AGAIN and any(precision.may_cast_units(m, study) for m in models):
        why = (
            f"before torch {CASTS_AGAIN} a forward that is computed again gets its inputs as they "
            "were before they were cast to param_dtype, and stops if that is another dtype"
        )
    elif study.target < FIXED and checkpointing.may_run_twice(models, study):
        why = f"before torch {FIXED} it can fail for a module that runs twice before its backward"
    review = ""
    if why:
        review = (
            "apply activation checkpointing before fully_shard: it goes around the sharded modules "
            f"here, and {why}"
        )
    return study.rewritten(
        site, RULE.code, "kept, around the sharded modules", models=models, review=review
    )
