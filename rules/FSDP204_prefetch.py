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

from fsdp_migrate.families.wrapping import vocabulary
from fsdp_migrate.fsdp1.api import canonical
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, Rule

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

EXAMPLES = [
    Example(
        title="the default behaviour",
        before="""\
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP

model = FSDP(model, backward_prefetch=BackwardPrefetch.BACKWARD_PRE)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
""",
    ),
    Example(
        title="less memory, given up",
        before="""\
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP

model = FSDP(model, backward_prefetch=BackwardPrefetch.BACKWARD_POST)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

# TODO(fsdp-migrate FSDP204): FSDP2 always prefetches as BACKWARD_PRE did; with backward_prefetch=BackwardPrefetch.BACKWARD_POST FSDP1 may have used less memory.
model = fully_shard(model)
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="forward prefetch",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, forward_prefetch=True)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
""",
    ),
    Example(
        title="a field of a configuration",
        before="""\
from dataclasses import dataclass

from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP


@dataclass
class Config:
    prefetch: BackwardPrefetch | None = BackwardPrefetch.BACKWARD_PRE


def shard_model(model, config: Config):
    return FSDP(model, backward_prefetch=config.prefetch)
""",
        after="""\
from dataclasses import dataclass

from torch.distributed.fsdp import fully_shard

from fsdp2_support import BackwardPrefetch


@dataclass
class Config:
    prefetch: BackwardPrefetch | None = BackwardPrefetch.BACKWARD_PRE


def shard_model(model, config: Config):
    # TODO(fsdp-migrate FSDP204): FSDP2 always prefetches as BACKWARD_PRE did; with backward_prefetch=config.prefetch FSDP1 may have used less memory.
    return fully_shard(model)
""",
        outcome=Outcome.REVIEW,
        support=("BackwardPrefetch",),
    ),
]

KEEP = [
    Keep(
        title="prefetching of data",
        source="""\
from torch.utils.data import DataLoader

loader = DataLoader(dataset, prefetch_factor=2)
""",
    ),
    Keep(
        title="the enum on its own",
        source="""\
from torch.distributed.fsdp import BackwardPrefetch

prefetch = BackwardPrefetch.BACKWARD_PRE
""",
        left=True,
    ),
    Keep(
        title="FSDP2's explicit prefetching",
        source="""\
for layer, following in zip(layers, layers[1:]):
    layer.set_modules_to_forward_prefetch([following])
""",
    ),
    Keep(
        title="a prefetcher of the project's own",
        source="""\
from training.data import BackwardPrefetch

prefetch = BackwardPrefetch()
""",
    ),
]


def decide(site: Site, study: Study) -> Decision:
    if vocabulary.name_of(site.construct) == "BackwardPrefetch":
        return vocabulary.keep(site, "BackwardPrefetch", study, RULE.code)
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
