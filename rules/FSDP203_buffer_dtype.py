"""Cast buffers after sharding where `MixedPrecision(buffer_dtype=...)` did.

## What changes
After construction, floating-point buffers are cast once, as FSDP1 did before the first forward. BatchNorm
statistics stay as they are when the model has a wrapping policy.

## Why
FSDP2 never touches buffers. Dropping `buffer_dtype` silently changes the numerics of everything that
reads a buffer, rotary tables above all.

## What stays for you
FSDP1 wrote such buffers to checkpoints in their original dtype (with rounded values); after the rewrite
persistent ones are written in `buffer_dtype`.

## Since torch
2.6

## References
- torch/distributed/fsdp/_runtime_utils.py (`_cast_buffers_to_dtype_and_device`)
"""

from fsdp_migrate import models, precision
from fsdp_migrate.rule import Example, Keep, Rule
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study

RULE = Rule(code="FSDP203", name="buffer_dtype", handles=("MixedPrecision(buffer_dtype=)",))

EXAMPLES: list[Example] = []
KEEP: list[Keep] = []


def decide(site: Site, study: Study) -> Decision:
    constructors = precision.users(site, study)
    review = ""
    for constructor in constructors:
        plan = study.plans[constructor]
        try:
            cast = precision.cast_buffers(plan, study)
        except precision.Unreadable as problem:
            return study.left(
                site, RULE.code, str(problem), "cast the buffers by hand after sharding"
            )
        if not cast:
            continue
        if models.may_save_float_buffers(constructor.wrapped, constructor.module, study):
            review = (
                "persistent float buffers are now saved in buffer_dtype, FSDP1 saved them in "
                "their original dtype"
            )
    return study.rewritten(
        site, RULE.code, "buffers are cast after sharding", models=constructors, review=review
    )
