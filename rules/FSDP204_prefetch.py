"""Drop prefetch settings: FSDP2 prefetches by itself.

## What changes
`backward_prefetch` and `forward_prefetch` disappear. FSDP2 always does what
`BackwardPrefetch.BACKWARD_PRE`, FSDP1's default, asked for.

## Why
There are no such switches any more. Explicit prefetching, for CPU-bound models, is
`set_modules_to_forward_prefetch`.

## What stays for you
`BACKWARD_POST` and `None` used less memory and were slower: check the peak memory.
`forward_prefetch=True` only mattered when the CPU was the bottleneck.

## Since torch
2.6

## References
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

import ast

from fsdp_migrate.fsdp1 import canonical
from fsdp_migrate.rule import Example, Keep, Rule
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study

RULE = Rule(
    code="FSDP204",
    name="prefetch",
    handles=(
        "FullyShardedDataParallel(backward_prefetch=)",
        "FullyShardedDataParallel(forward_prefetch=)",
        "BackwardPrefetch",
    ),
)

EXAMPLES: list[Example] = []
KEEP: list[Keep] = []


def decide(site: Site, study: Study) -> Decision:
    if site.construct == "BackwardPrefetch":
        return study.left(
            site, RULE.code, "BackwardPrefetch has no counterpart in FSDP2", "delete this use"
        )
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
