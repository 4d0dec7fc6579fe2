"""Cast buffers after sharding where `MixedPrecision(buffer_dtype=...)` did.

## What changes
After construction, floating-point buffers are cast once, as FSDP1 did before the first forward.
BatchNorm statistics stay as they are when the model has a wrapping policy.

## Why
FSDP2 never touches buffers. Dropping `buffer_dtype` silently changes the numerics of everything
that reads a buffer, rotary tables above all.

## What stays for you
FSDP1 wrote such buffers to checkpoints in their original dtype (with rounded values); after the
rewrite persistent ones are written in `buffer_dtype`.

## Since torch
2.6

## References
- torch/distributed/fsdp/_runtime_utils.py (`_cast_buffers_to_dtype_and_device`)
"""

from fsdp_migrate.families.precision import precision
from fsdp_migrate.families.wrapping import models
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(code="FSDP203", name="buffer_dtype", handles=("MixedPrecision(buffer_dtype=)",))

EXAMPLES = [
    Example(
        title="buffers are cast once, after sharding",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

from transformers import GPT2LMHeadModel

bf16 = torch.bfloat16
model = GPT2LMHeadModel.from_pretrained("a-model")
model = FSDP(
    model,
    mixed_precision=MixedPrecision(param_dtype=bf16, reduce_dtype=bf16, buffer_dtype=bf16),
)
""",
        after="""\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from transformers import GPT2LMHeadModel

bf16 = torch.bfloat16
model = GPT2LMHeadModel.from_pretrained("a-model")
fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=bf16))
for buffer in model.buffers():
    if buffer.is_floating_point():
        buffer.data = buffer.to(bf16)
""",
    ),
    Example(
        title="several policies that agree",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

bf16 = MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
fp16 = MixedPrecision(param_dtype=torch.float16, buffer_dtype=torch.float16)


def shard(model, args):
    model = FSDP(model, mixed_precision=bf16 if args.bf16 else fp16)
    return model
""",
        after="""\
from dataclasses import replace

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

# TODO(fsdp-migrate FSDP203): Persistent float buffers are now saved in buffer_dtype, FSDP1 saved them in their original dtype.
bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False)
# TODO(fsdp-migrate FSDP203): Persistent float buffers are now saved in buffer_dtype, FSDP1 saved them in their original dtype.
fp16 = MixedPrecisionPolicy(param_dtype=torch.float16, cast_forward_inputs=False)


def shard(model, args):
    mp_policy = bf16 if args.bf16 else fp16
    fully_shard(model, mp_policy=replace(mp_policy, cast_forward_inputs=True))
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.to(mp_policy.param_dtype)
    return model
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="a buffer dtype of its own",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision



def shard(model):
    return FSDP(model, mixed_precision=MixedPrecision(buffer_dtype=torch.float16))
""",
        after="""\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard



def shard(model):
    # TODO(fsdp-migrate FSDP203): Persistent float buffers are now saved in buffer_dtype, FSDP1 saved them in their original dtype.
    fully_shard(model, mp_policy=MixedPrecisionPolicy())
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.to(torch.float16)
    return model
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="a call whose last line holds the setting",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def shard(net):
    half = MixedPrecision(
        param_dtype=torch.float16, reduce_dtype=torch.float16, buffer_dtype=torch.float16
    )
    return FSDP(net, mixed_precision=half)
""",
        after="""\
from dataclasses import replace

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def shard(net):
    # TODO(fsdp-migrate FSDP203): Persistent float buffers are now saved in buffer_dtype, FSDP1 saved them in their original dtype.
    half = MixedPrecisionPolicy(
        param_dtype=torch.float16, reduce_dtype=torch.float16, cast_forward_inputs=False
    )
    fully_shard(net, mp_policy=replace(half, cast_forward_inputs=True))
    for buffer in net.buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.to(torch.float16)
    return net
""",
        outcome=Outcome.REVIEW,
    ),
]

KEEP = [
    Keep(
        title="buffers that the program casts itself",
        source="""\
for buffer in model.buffers():
    buffer.data = buffer.to("cpu")
""",
    ),
    Keep(
        title="a buffer_dtype of something else",
        source="""\
def configure(buffer_dtype):
    return buffer_dtype


configure(buffer_dtype="fp32")
""",
    ),
    Keep(
        title="a dictionary with such a key",
        source="""\
import torch

settings = {"buffer_dtype": torch.bfloat16}
""",
    ),
    Keep(
        title="buffers cast by hand",
        source="""\
import torch

for buffer in model.buffers():
    buffer.data = buffer.data.to(torch.bfloat16)
""",
    ),
    Keep(
        title="buffers of a module that is not sharded",
        source="""\
import torch

ema.to(dtype=torch.bfloat16)
""",
    ),
]


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
