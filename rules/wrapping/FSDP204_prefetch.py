"""Drop prefetch settings: FSDP2 prefetches by itself."""

import ast

from fsdp_migrate.families.names import field_removal
from fsdp_migrate.families.wrapping import prefetch, vocabulary
from fsdp_migrate.families.wrapping.evaluation_scripts import only_evaluates
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule

RULE = Rule(
    code="FSDP204",
    name="prefetch",
    handles=(
        "FullyShardedDataParallel(backward_prefetch=)",
        "FullyShardedDataParallel(forward_prefetch=)",
        "BackwardPrefetch",
        "annotation(BackwardPrefetch)",
        "isinstance(BackwardPrefetch)",
    ),
)

EARLIER = (
    "FSDP2 gathers a unit when the CPU comes to it; set_modules_to_forward_prefetch gathers earlier"
)


def decide(site: Site, study: Study) -> Decision:
    if site.construct.owner == "BackwardPrefetch":
        removal = field_removal.remove(site, study)
        if removal is not None:
            proposal, models = removal
            message = "its field goes: FSDP2 prefetches by itself"
            return study.rewritten(site, RULE.code, message, proposal, models=models)
        return vocabulary.import_from_support(site, "BackwardPrefetch", study, RULE.code)
    plan, value, name = study.argument(site)
    if name == "forward_prefetch":
        told = study.literal(value, site.module)
        message = "dropped" if told is not None and not told.value else f"dropped, {EARLIER}"
        return study.dropped(site, RULE.code, message)
    prefetch.remove_table(value, site.module, study, plan.proposal)
    prefetch.remove_variable(value, plan, study)
    if prefetch.may_be_default(plan.constructor, study):
        return study.dropped(site, RULE.code, "dropped, FSDP2 does BACKWARD_PRE")
    shown = ast.unparse(value)
    if only_evaluates(site.module, study):
        return study.dropped(site, RULE.code, f"dropped, it was {shown}, and nothing goes backward")
    return study.dropped(
        site,
        RULE.code,
        f"dropped, it was {shown}",
        review=f"FSDP2 always prefetches as BACKWARD_PRE did; with backward_prefetch={shown} FSDP1 "
        "may have used less memory",
    )
