"""Leave optimizers whose steps fail on sharded parameters, and say of which that is not known."""

from fsdp_migrate.families.parameters import (
    failing_optimizers,
    optimized_models,
    parameter_owners,
    plain_states,
    shaped_steps,
)
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
        "plain tensor of a parameter's shape",
        "own optimizer that goes by shapes",
    ),
    finders=(
        Finder(30, failing_optimizers.find_failing_optimizers),
        Finder(31, plain_states.find_plain_states),
        Finder(32, shaped_steps.find_shaped_steps),
    ),
)


UNKNOWN = (
    "FSDP1 gave this optimizer flat pieces, and now it gets DTensors of the whole shape: whether "
    "its step takes them, and trains the same where it goes by shapes, is not known"
)

SHAPED = (
    "FSDP1 gave this optimizer flat pieces, and now it gets DTensors of the whole shape: its step "
    "goes by `{}`, and trains otherwise or fails"
)


def decide(site: Site, study: Study) -> Decision:
    if site.construct == plain_states.PLAIN:
        return study.left(
            site,
            RULE.code,
            "a plain tensor of the shape of a parameter, a DTensor now: together they fail",
            "make it with torch.zeros_like, or let the step work on p.to_local()",
            models=parameter_owners.models_of_optimizer(site.subject, study, site.module),
        )
    models = optimized_models.models(site.call, site.module, study)
    if site.construct == failing_optimizers.STRANGE:
        message = "kept: another package's"
        return study.kept_as_is(site, RULE.code, message, models=models, review=UNKNOWN)
    if site.construct == shaped_steps.SHAPED:
        review = SHAPED.format(shaped_steps.shown(site, study))
        return study.kept_as_is(
            site, RULE.code, "kept: goes by shapes", models=models, review=review
        )
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
