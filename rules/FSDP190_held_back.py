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
it held back go with it.

## Since torch
2.6

## References
- docs/design.md, "Decisions are data"
"""

from fsdp_migrate.rule import Example, Keep, Outcome, Rule

RULE = Rule(code="FSDP190", name="held_back", handles=())

EXAMPLES = [
    Example(
        title="a constructor that cannot be migrated holds back what is done to its model",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model, **options):
    return FSDP(model, **options)

def step(net):
    model = build(net, **read_options())
    return model.clip_grad_norm_(1.0)
""",
        after="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model, **options):
    # TODO(fsdp-migrate FSDP101): The arguments of FSDP cannot be read: its keyword arguments come from **options. Write them out at the call.
    return FSDP(model, **options)

def step(net):
    model = build(net, **read_options())
    return model.clip_grad_norm_(1.0)
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="one argument holds back the constructor and the other arguments",
        before="""\
import torch
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

def build(model, options):
    return FSDP(model, cpu_offload=CPUOffload(True), mixed_precision=options.precision)
""",
        after="""\
import torch
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

def build(model, options):
    # TODO(fsdp-migrate FSDP202): Options is a parameter of build, which nothing here calls. Write the MixedPrecisionPolicy by hand.
    return FSDP(model, cpu_offload=CPUOffload(True), mixed_precision=options.precision)
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="models that share a precision policy wait for each other",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

precision = MixedPrecision(param_dtype=torch.bfloat16)

def build(actor, critic, options):
    actor = FSDP(actor, mixed_precision=precision)
    critic = FSDP(critic, mixed_precision=precision, cpu_offload=options.offload)
    return actor, critic
""",
        after="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

precision = MixedPrecision(param_dtype=torch.bfloat16)

def build(actor, critic, options):
    actor = FSDP(actor, mixed_precision=precision)
    # TODO(fsdp-migrate FSDP115): Options is a parameter of build, which nothing here calls. Pass offload_policy=CPUOffloadPolicy() by hand.
    critic = FSDP(critic, mixed_precision=precision, cpu_offload=options.offload)
    return actor, critic
""",
        outcome=Outcome.LEFT,
    ),
]

KEEP = [
    Keep(
        title="arguments that are read at run time",
        left=True,
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def step(model, loss):
    model = FSDP(model, **read_options())
    with model.no_sync():
        loss.backward()
""",
    ),
    Keep(
        title="an offload setting from a file",
        left=True,
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    return FSDP(model, sync_module_states=True, cpu_offload=load("offload.pkl"))
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
