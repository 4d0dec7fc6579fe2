"""Drop constructor arguments that FSDP2 does not need.

## What changes
`use_orig_params` and `limit_all_gathers` disappear.

## Why
FSDP2 always works on original parameters, and its memory management makes the all-gather limiter
unnecessary.

## What stays for you
Without `use_orig_params=True` (the default was False), FSDP1 showed the optimizer one flat parameter per
unit. FSDP2 shows the original ones: weight-decay groups by name or by `p.ndim`, which did nothing before,
take effect.

## Since torch
2.6

## References
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from fsdp_migrate.rule import Example, Keep, Rule
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study

RULE = Rule(
    code="FSDP116",
    name="obsolete_arguments",
    handles=(
        "FullyShardedDataParallel(use_orig_params=)",
        "FullyShardedDataParallel(limit_all_gathers=)",
    ),
)

EXAMPLES: list[Example] = []
KEEP: list[Keep] = []


def decide(site: Site, study: Study) -> Decision:
    return study.dropped(site, RULE.code, "dropped")
