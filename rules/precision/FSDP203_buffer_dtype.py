"""Cast buffers after sharding where `MixedPrecision(buffer_dtype=...)` did."""

from fsdp_migrate.families.precision import precision
from fsdp_migrate.families.wrapping import model_contents
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule

RULE = Rule(code="FSDP203", name="buffer_dtype", handles=("MixedPrecision(buffer_dtype=)",))


def decide(site: Site, study: Study) -> Decision:
    constructors = precision.constructors_casting(site, study)
    message = "dropped, there are no float buffers"
    for constructor in constructors:
        plan = study.plans[constructor]
        if not model_contents.may_have_float_buffers(
            constructor.wrapped, constructor.module, study
        ):
            continue
        try:
            precision.cast_buffers(plan, study)
        except precision.Unreadable as problem:
            return study.left(
                site, RULE.code, str(problem), "cast the buffers by hand after sharding"
            )
        message = "buffers are cast after sharding"
    return study.rewritten(site, RULE.code, message, models=constructors)
