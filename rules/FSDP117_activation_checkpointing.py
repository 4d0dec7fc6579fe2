"""Activation checkpointing goes in before the sharding.

## What changes
FSDP1 code wraps the model and then calls `apply_activation_checkpointing` on it, which puts the
checkpoint inside each unit. Where both stand in one straight run of statements and choose the same
classes, the model is now checkpointed first and the `CheckpointWrapper`s are sharded.

## Why
`fully_shard` makes no wrapper of its own, so FSDP1's order would put the checkpoint around the unit:
`model.layers[0]` would be a `CheckpointWrapper` and no `FSDPModule`. torch 2.13 gives the same losses
and collectives either way; before 2.11, a block that runs twice before its backward can fail with the
checkpoint outside (pytorch/pytorch#153354).

## What stays for you
Checkpointing that is applied elsewhere, under a condition, or to other modules than the units stays
where it is. It is marked when the project's torch may be older than 2.11.

## Since torch
2.6

## References
- https://github.com/pytorch/pytorch/issues/153354
- https://github.com/pytorch/torchtitan/blob/main/docs/fsdp.md
"""

from packaging.version import Version

from fsdp_migrate.families.modules import checkpointing
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Finder, Keep, Rule

RULE = Rule(
    code="FSDP117",
    name="activation-checkpointing",
    handles=("late activation checkpointing",),
    finders=(Finder(50, checkpointing.find_late_checkpointing),),
)

EXAMPLES = [
    Example(
        title="after wrapping",
        before="""\
import functools

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from layers import Block


def build(model):
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    model = FSDP(model, auto_wrap_policy=policy)
    wrapper = functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT)
    apply_activation_checkpointing(
        model, checkpoint_wrapper_fn=wrapper, check_fn=lambda m: isinstance(m, Block)
    )
    return model
""",
        after="""\
import functools

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import fully_shard

from layers import Block


def build(model):
    wrapper = functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT)
    apply_activation_checkpointing(
        model, checkpoint_wrapper_fn=wrapper, check_fn=lambda m: isinstance(m, Block)
    )
    for module in reversed(list(model.modules())):
        if isinstance(getattr(module, "_checkpoint_wrapped_module", None), Block):
            fully_shard(module)
    fully_shard(model)
    return model
""",
    ),
    Example(
        title="of a model made in the call",
        before="""\
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from layers import Decoder, Encoder, Net

half = MixedPrecision(param_dtype=torch.bfloat16)


def is_block(module):
    return isinstance(module, (Encoder, Decoder))


def main():
    model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Decoder, Encoder}), mixed_precision=half)
    apply_activation_checkpointing(model, check_fn=is_block)
    optimizer = torch.optim.AdamW(model.parameters())
""",
        after="""\
from dataclasses import replace

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.modules.batchnorm import _BatchNorm

from layers import Decoder, Encoder, Net

half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False)


def is_block(module):
    return isinstance(module, (Encoder, Decoder))


def main():
    model = Net()
    apply_activation_checkpointing(model, check_fn=is_block)
    # Like FSDP1, only the root casts its inputs to param_dtype.
    root_mp_policy = replace(half, cast_forward_inputs=True)
    # Like FSDP1, BatchNorm layers compute in fp32 and hand on the units' dtype.
    batch_norm_policy = MixedPrecisionPolicy(
        param_dtype=torch.float32, output_dtype=half.param_dtype
    )
    for module in reversed(list(model.modules())):
        if isinstance(module, _BatchNorm):
            fully_shard(module, mp_policy=batch_norm_policy)
        elif isinstance(getattr(module, "_checkpoint_wrapped_module", None), (Decoder, Encoder)):
            fully_shard(module, mp_policy=half)
    fully_shard(model, mp_policy=root_mp_policy)
    optimizer = torch.optim.AdamW(model.parameters())
""",
    ),
    Example(
        title="under a condition",
        before="""\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from layers import Block


def build(model, config):
    model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}))
    if config.checkpointing:
        apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, Block))
    return model
""",
        after="""\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import fully_shard

from layers import Block


def build(model, config):
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, Block):
            fully_shard(module)
    fully_shard(model)
    if config.checkpointing:
        # TODO(fsdp-migrate FSDP117): Activation checkpointing goes around the sharded modules here, and before torch 2.11 a module that runs twice before its backward can fail so; apply it before fully_shard.
        apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, Block))
    return model
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="of every second block",
        before="""\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from layers import Block


def build(model):
    model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}))
    apply_activation_checkpointing(
        model, check_fn=lambda m: isinstance(m, Block) and m.index % 2 == 0
    )
    return model
""",
        after="""\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import fully_shard

from layers import Block


def build(model):
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, Block):
            fully_shard(module)
    fully_shard(model)
    # TODO(fsdp-migrate FSDP117): Activation checkpointing goes around the sharded modules here, and before torch 2.11 a module that runs twice before its backward can fail so; apply it before fully_shard.
    apply_activation_checkpointing(
        model, check_fn=lambda m: isinstance(m, Block) and m.index % 2 == 0
    )
    return model
""",
        outcome=Outcome.REVIEW,
    ),
]

KEEP = [
    Keep(
        title="before wrapping",
        source="""\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

from layers import Block
from parallel import wrap

apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, Block))
model = wrap(model)
""",
    ),
    Keep(
        title="of a model that FSDP2 shards",
        source="""\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import fully_shard

for block in model.blocks:
    fully_shard(block)
fully_shard(model)
apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, Block))
""",
    ),
    Keep(
        title="another model's",
        source="""\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.nn.parallel import DistributedDataParallel

teacher = DistributedDataParallel(teacher)
apply_activation_checkpointing(teacher, check_fn=is_block)
""",
    ),
    Keep(
        title="a function of the project's own of that name",
        source="""\
def apply_activation_checkpointing(model, check_fn):
    for block in filter(check_fn, model.modules()):
        block.checkpointed = True


apply_activation_checkpointing(model, check_fn=is_block)
""",
    ),
]

FIXED = Version("2.11")


def decide(site: Site, study: Study) -> Decision:
    assert site.receiver is not None
    models = study.models(site.receiver, site.module).constructors
    statement = site.module.table.statement(site.node)
    if any(plan.behind is statement for plan in study.plans.values()):
        return study.rewritten(site, RULE.code, "comes before the sharding", models=models)
    review = ""
    if study.target < FIXED:
        review = (
            "activation checkpointing goes around the sharded modules here, and before torch 2.11 a "
            "module that runs twice before its backward can fail so; apply it before fully_shard"
        )
    return study.rewritten(
        site, RULE.code, "kept, around the sharded modules", models=models, review=review
    )
