"""Say a sharding strategy with `reshard_after_forward` and a mesh.

## What changes
| FSDP1 | FSDP2 |
|---|---|
| `FULL_SHARD` (default) | nothing: the default |
| `SHARD_GRAD_OP` | `reshard_after_forward=False` on every call |
| `HYBRID_SHARD` | the 2-D mesh alone |
| `_HYBRID_SHARD_ZERO2` | the 2-D mesh and `reshard_after_forward=False` |
| `NO_SHARD` | a mesh of `(world_size, 1)` |

## Why
`FULL_SHARD` is not `reshard_after_forward=True`: from torch 2.8 on that would reshard the root too, one more
all-gather a step than FSDP1. Boolean tables copied from the web get `SHARD_GRAD_OP` and `NO_SHARD` wrong.

## What stays for you
Strategies that are only known at run time are chosen by a support function.

## Since torch
2.6

## References
- https://github.com/pytorch/pytorch/pull/155319
- torch/distributed/fsdp/_fully_shard/_fully_shard.py
"""

from fsdp_migrate import strategy
from fsdp_migrate.rule import Example, Keep, Rule
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study

RULE = Rule(
    code="FSDP201",
    name="sharding_strategy",
    handles=(
        "FullyShardedDataParallel(sharding_strategy=)",
        "ShardingStrategy",
        "annotation(ShardingStrategy)",
    ),
)

EXAMPLES: list[Example] = []
KEEP: list[Keep] = []


def decide(site: Site, study: Study) -> Decision:
    if site.construct == RULE.handles[0]:
        return strategy.argument(site, study, RULE.code)
    return strategy.reference(site, study, RULE.code)
