"""Drop prefetch settings: FSDP2 prefetches by itself."""

import ast

from fsdp_migrate.families.wrapping import vocabulary
from fsdp_migrate.fsdp1.api import canonical
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


def decide(site: Site, study: Study) -> Decision:
    if site.construct.owner == "BackwardPrefetch":
        return vocabulary.import_from_support(site, "BackwardPrefetch", study, RULE.code)
    _, value, name = study.argument(site)
    if name == "forward_prefetch":
        return study.dropped(site, RULE.code, "dropped, FSDP2 prefetches itself")
    names = {canonical(q) for q in study.external(value, site.module)}
    if names == {"BackwardPrefetch.BACKWARD_PRE"}:
        return study.dropped(site, RULE.code, "dropped, FSDP2 does BACKWARD_PRE")
    shown = "None" if isinstance(value, ast.Constant) else ast.unparse(value)
    return study.dropped(
        site,
        RULE.code,
        f"dropped, it was {shown}",
        review=f"FSDP2 always prefetches as BACKWARD_PRE did; with backward_prefetch={shown} FSDP1 "
        "may have used less memory",
    )
