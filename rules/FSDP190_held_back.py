"""Hold a model's whole migration back when part of it would go quietly wrong.

## What changes
Nothing: the site could be rewritten by itself, but not together with another one of the same
model, which the message names.

## Why
A model is migrated whole or not at all. Where its constructor stays FSDP1, everything done to it
must stay FSDP1 too; where its constructor could go but something later would run and quietly train
or save wrongly (a norm over shards, a state dict of pieces), the constructor waits for it. Models
that share a policy, a precision or an optimizer wait for each other.

## What stays for you
Settle the site that is named, in the code or by widening the paths, and run again: the sites that
it held back go with it. Or run `rewrite --partial`: what was held back is rewritten, and an error
is raised where the named site would run.

## Since torch
2.6

## References
- docs/design.md, "Decisions are data"
"""

from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(code="FSDP190", name="held_back", handles=())

EXAMPLES = [
    Example(
        title="a constructor that cannot be migrated holds back what is done to its model",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

def build(model):
    precision = MixedPrecision(param_dtype=torch.bfloat16, keep_low_precision_grads=True)
    return FSDP(model, mixed_precision=precision)

def step(net):
    model = build(net)
    return model.clip_grad_norm_(1.0)
""",
        after="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

def build(model):
    # TODO(fsdp-migrate FSDP202): keep_low_precision_grads=True has no counterpart in FSDP2. Gradients are always in the original dtype: drop the setting.
    precision = MixedPrecision(param_dtype=torch.bfloat16, keep_low_precision_grads=True)
    return FSDP(model, mixed_precision=precision)

def step(net):
    model = build(net)
    return model.clip_grad_norm_(1.0)
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="one argument holds back the constructor and the other arguments",
        before="""\
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

def build(model):
    return FSDP(
        model,
        cpu_offload=CPUOffload(True),
        ignored_modules=[model.head],
        ignored_states=[model.scale],
    )
""",
        after="""\
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

def build(model):
    # TODO(fsdp-migrate FSDP113): Both ignored_modules and ignored_states are given, which FSDP1 refuses. Give one of them.
    return FSDP(
        model,
        cpu_offload=CPUOffload(True),
        ignored_modules=[model.head],
        ignored_states=[model.scale],
    )
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="models that share a precision policy wait for each other",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy

precision = MixedPrecision(param_dtype=torch.bfloat16)

def build(actor, critic):
    actor = FSDP(actor, mixed_precision=precision)
    critic = FSDP(critic, None, ShardingStrategy.HYBRID_SHARD, mixed_precision=precision)
    return actor, critic
""",
        after="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy

precision = MixedPrecision(param_dtype=torch.bfloat16)

def build(actor, critic):
    actor = FSDP(actor, mixed_precision=precision)
    # TODO(fsdp-migrate FSDP201): HYBRID_SHARD without a policy, group or mesh is an error in FSDP1. Build a 2-D device mesh and pass it as device_mesh.
    critic = FSDP(critic, None, ShardingStrategy.HYBRID_SHARD, mixed_precision=precision)
    return actor, critic
""",
        outcome=Outcome.LEFT,
    ),
]

KEEP = [
    Keep(
        title="a model with a part that cannot be migrated",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

def build(model):
    for i, block in enumerate(model.blocks):
        precision = MixedPrecision(keep_low_precision_grads=True)
        model.blocks[i] = FSDP(block, mixed_precision=precision)
    return FSDP(model)
""",
        left=True,
    ),
    Keep(
        title="arguments that FSDP1 refuses",
        left=True,
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def step(model, loss):
    model = FSDP(model, shard=True)
    with model.no_sync():
        loss.backward()
""",
    ),
    Keep(
        title="a strategy that nothing says how to divide",
        left=True,
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

def build(model):
    return FSDP(model, sync_module_states=True, sharding_strategy=ShardingStrategy.HYBRID_SHARD)
""",
    ),
    Keep(
        title="nothing is held back with a model that is migrated already",
        source="""\
import torch
from torch.distributed.fsdp import fully_shard

def build(model):
    fully_shard(model)
    return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
    ),
]
