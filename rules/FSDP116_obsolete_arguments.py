"""Drop constructor arguments that FSDP2 does not need.

## What changes
`use_orig_params` and `limit_all_gathers` disappear.

## Why
FSDP2 always works on original parameters, and its memory management makes the all-gather limiter
unnecessary.

## What stays for you
Without `use_orig_params=True` (the default was False), FSDP1 showed the optimizer one flat
parameter per unit. FSDP2 shows the original ones: weight-decay groups by name or by `p.ndim`, which
did nothing before, take effect.

## Since torch
2.6

## References
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(
    code="FSDP116",
    name="obsolete_arguments",
    handles=(
        "FullyShardedDataParallel(use_orig_params=)",
        "FullyShardedDataParallel(limit_all_gathers=)",
    ),
)

EXAMPLES = [
    Example(
        title="both at once",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, use_orig_params=True, limit_all_gathers=True)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
""",
    ),
    Example(
        title="between arguments that stay",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

model = FSDP(
    model,
    limit_all_gathers=False,  # measured
    sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

model = fully_shard(model, reshard_after_forward=False)
""",
    ),
    Example(
        title="flags that are only known at run time",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def shard(model, args):
    return FSDP(model, use_orig_params=args.orig)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

def shard(model, args):
    return fully_shard(model)
""",
    ),
    Example(
        title="one learning rate a layer",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def optimize(net, rates):
    model = FSDP(net, use_orig_params=True)
    groups = [{"params": [p], "lr": rates[n]} for n, p in model.named_parameters()]
    head = [p for n, p in model.named_parameters() if "head" in n]
    return torch.optim.SGD(groups), head
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard


def optimize(net, rates):
    model = fully_shard(net)
    groups = [{"params": [p], "lr": rates[n]} for n, p in model.named_parameters()]
    head = [p for n, p in model.named_parameters() if "head" in n]
    return torch.optim.SGD(groups), head
""",
    ),
]

KEEP = [
    Keep(
        title="an argument of the same name elsewhere",
        source="""\
def configure(use_orig_params):
    return use_orig_params


configure(use_orig_params=True)
""",
    ),
    Keep(
        title="accelerate's plugin",
        source="""\
from accelerate import FullyShardedDataParallelPlugin

plugin = FullyShardedDataParallelPlugin(use_orig_params=True)
""",
    ),
    Keep(
        title="a dictionary that no constructor takes",
        source="""\
fsdp_config = {"use_orig_params": True, "limit_all_gathers": True}
""",
    ),
    Keep(
        title="a learning rate a layer without FSDP",
        source="""\
groups = [{"params": [p], "lr": rates[n]} for n, p in model.named_parameters()]
""",
    ),
]


def decide(site: Site, study: Study) -> Decision:
    return study.dropped(site, RULE.code, "dropped")
