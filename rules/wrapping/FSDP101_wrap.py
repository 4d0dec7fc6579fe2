"""Wrap a model with `fully_shard` instead of `FullyShardedDataParallel`."""

from fsdp_migrate.families.modules import checkpointing
from fsdp_migrate.families.precision import partial_casts
from fsdp_migrate.families.wrapping import (
    chosen_classes,
    class_layouts,
    derived_hooks,
    partial_functions,
    refused_modules,
    shared_functions,
)
from fsdp_migrate.families.wrapping.forward_registration import plan_registration, register_made
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.rendering import render
from fsdp_migrate.planning.rule import Finder, Rule
from fsdp_migrate.planning.shard_plan import placement_problem

RULE = Rule(
    code="FSDP101",
    name="wrap",
    handles=(
        "FullyShardedDataParallel()",
        "partial(FullyShardedDataParallel)",
        "order of bases",
        "hook of derived classes",
    ),
    finders=(
        Finder(45, class_layouts.find_slotted_bases),
        Finder(46, derived_hooks.find_derived_hooks),
    ),
)

AROUND = "activation checkpointing is put around it where it is made"


def decide(site: Site, study: Study) -> Decision:
    if site.construct == class_layouts.CONSTRUCT:
        return class_layouts.decide_order(site, study, RULE.code)
    if site.construct == derived_hooks.CONSTRUCT:
        return derived_hooks.decide_hook(site, study, RULE.code)
    constructor = study.constructors[site.node]
    models = [constructor]
    if constructor.problem:
        never = None
        if constructor.has_module:
            never = refused_modules.refusal_in_any_form(constructor, study)
        if never is not None:
            return _refused(never, constructor, site, study, final=True)
        return study.left(
            site,
            RULE.code,
            f"the arguments of FSDP cannot be read: {constructor.problem}",
            "write them out at the call",
            models=models,
        )
    refused = refused_modules.refusal(constructor, study)
    if refused is not None:
        return _refused(refused, constructor, site, study, final=refused.final)
    plan = study.plans[constructor]
    if constructor.is_function:
        register_made(constructor, plan.proposal, study)
        problem = partial_functions.write(plan)
        if problem:
            return study.left(site, RULE.code, problem, "call FSDP itself", models=models)
        message = "a function of the same name shards the model that it is given"
        return study.rewritten(site, RULE.code, message, plan.proposal, models=models)
    plan_registration(plan, study)
    late = checkpointing.following_checkpointing(constructor, study)
    if plan.place is not None:
        problem = shared_functions.write(plan) if late is None else AROUND
        if problem:
            help = "write the loop over the modules at the call"
            return study.left(site, RULE.code, problem, help, models=models)
        message = "a function shards it, and others"
        review = refused_modules.doubt(constructor, study)
        return study.rewritten(
            site, RULE.code, message, plan.proposal, models=models, review=review
        )
    if constructor.choice is not None:
        problem = chosen_classes.write(plan, study) if late is None else AROUND
        if problem:
            help = "choose between two statements"
            return study.left(site, RULE.code, problem, help, models=models)
        message = "either fully_shard or the other class"
        review = refused_modules.doubt(constructor, study)
        return study.rewritten(
            site, RULE.code, message, plan.proposal, models=models, review=review
        )
    if not plan.is_compact:
        problem = placement_problem(constructor, plan.once)
        if problem:
            return study.left(
                site,
                RULE.code,
                f"several statements are needed in place of this FSDP call, but {problem}",
                "assign the wrapped model to a name in a statement of its own",
                models=models,
            )
    if late is not None:
        checkpointing.move_sharding_behind(plan, late, study)
    render(plan)
    doubts = refused_modules.doubt(constructor, study), partial_casts.told(constructor, study)
    review = "; ".join(filter(None, doubts)) or constructor.assumed
    once = review == constructor.assumed  # others are given the same
    return study.rewritten(
        site, RULE.code, "fully_shard", plan.proposal, models=models, review=review, once=once
    )


def _refused(
    why: refused_modules.Refusal, constructor: Constructor, site: Site, study: Study, *, final: bool
) -> Decision:
    models = [constructor, *why.models]
    quiet = bool(why.models)  # one FSDP in the other
    return study.left(
        site, RULE.code, why.reason, why.help, models=models, quiet=quiet, final=final
    )
