"""Cast buffers after sharding where `MixedPrecision(buffer_dtype=...)` did."""

import ast

from fsdp_migrate.families.precision import precision
from fsdp_migrate.families.wrapping import late_memory, model_contents
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.planning.seen import seen_in_run
from fsdp_migrate.planning.shard_plan import ShardPlan
from fsdp_migrate.syntax.kinds import of_kind

RULE = Rule(
    code="FSDP203",
    name="buffer_dtype",
    handles=("MixedPrecision(buffer_dtype=)", "MixedPrecision.buffer_dtype"),
)

NO_FIELD = (
    "an FSDP2 policy has no buffer_dtype, so that this test fails here: ask the model's buffers "
    "for their dtype once it is sharded"
)


def decide(site: Site, study: Study) -> Decision:
    if site.construct == precision.ASKED:
        return _asked(site, study)
    constructors = precision.constructors_casting(site, study)
    message, review = "dropped, there are no float buffers", ""
    shown, casts = "", False
    for constructor in constructors:
        plan = study.plans[constructor]
        if not any(
            model_contents.may_have_float_buffers(each.wrapped, each.module, study)
            for each in plan.alike
        ):
            continue
        if _has_none_in_run(plan, study):
            shown = "there were no float buffers"
            continue
        try:
            precision.cast_buffers(plan, study)
        except precision.Unreadable as problem:
            return study.left(
                site, RULE.code, str(problem), "cast the buffers by hand after sharding"
            )
        message, casts = "buffers are cast after sharding", True
        review = review or late_memory.doubt(constructor, study)
    message = seen_in_run("dropped", shown) if shown and not casts else message
    return study.rewritten(site, RULE.code, message, models=constructors, review=review)


def _has_none_in_run(plan: ShardPlan, study: Study) -> bool:
    """Whether no model that was sharded by the code of a plan had float buffers."""
    made = [study.seen.construction_at(c.call, c.module) for c in plan.alike_constructors]
    return all(each is not None and not each.buffers for each in made)


def _asked(site: Site, study: Study) -> Decision:
    """``policy.buffer_dtype``, which an FSDP2 policy does not have, for one that is the same; in
    a test it stays where there is none, and fails there."""
    asked = of_kind(site.node, ast.Attribute)
    alike = precision.twin(asked, site.module, study)
    if not alike:
        return study.rewritten(site, RULE.code, "kept: a test's question", review=NO_FIELD)
    proposal = study.proposal()
    new = code("{p}.{n}", p=asked.value, n=alike)
    proposal.replace(site.module, asked, new)
    return study.rewritten(site, RULE.code, f"{alike}, which is the same", proposal)
