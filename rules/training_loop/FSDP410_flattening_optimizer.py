"""Leave optimizers whose steps fail on sharded parameters, and say of which that is not known."""

from fsdp_migrate.families.parameters import failing_optimizers, optimized_models
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule

RULE = Rule(
    code="FSDP410",
    name="flattening_optimizer",
    handles=(
        "optimizer that flattens",
        "optimizer without DTensors",
        "optimizer of another package",
    ),
    finders=(Finder(30, failing_optimizers.find_failing_optimizers),),
)


UNKNOWN = (
    "FSDP1 gave this optimizer flat pieces, and now it gets DTensors of the whole shape: whether "
    "its step takes them, and trains the same where it goes by shapes, is not known"
)


def decide(site: Site, study: Study) -> Decision:
    models = optimized_models.models(site.call, site.module, study)
    if site.construct == failing_optimizers.STRANGE:
        message = "kept: another package's"
        return study.kept_as_is(site, RULE.code, message, models=models, review=UNKNOWN)
    reason = "LBFGS flattens parameters, which fails on sharded ones of the whole shape"
    if site.construct == failing_optimizers.UNSUPPORTED:
        reason = "the first step of this optimizer fails on sharded parameters"
    return study.left(
        site,
        RULE.code,
        reason,
        "take another optimizer",
        models=models,
    )
