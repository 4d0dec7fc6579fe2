"""Turn `MixedPrecision` into `MixedPrecisionPolicy`, cast by cast.

## What changes
`MixedPrecision(param_dtype=..., reduce_dtype=...)` becomes `MixedPrecisionPolicy(...)` where it is
made. The units get it with `cast_forward_inputs=False`, the root with `True`, which is what FSDP1
did. BatchNorm layers stay units of their own in fp32 when there is a policy. Forward pre-hooks that are
registered on a sharded model get `prepend=True`; forward hooks that look at its inputs are marked.

## Why
FSDP2's default casts the inputs of *every* unit: fp32 rotary tables and masks handed to a block
would be cast to bf16, which costs precision without an error. FSDP2 casts in a pre-hook of the module,
FSDP1's wrapper cast what the hooks on it had seen, so that they would compute in bf16 as well.

## What stays for you
`keep_low_precision_grads=True` has no counterpart, nor has evaluation in full precision
(`FSDP_USE_FULL_PREC_IN_EVAL=1`): code that sets the variable is marked. A policy with
`_module_classes_to_ignore` of its own is left to the support function `shard`. `buffer_dtype` is
FSDP203's business.

## Since torch
2.6

## References
- torch/distributed/fsdp/_fully_shard/_fsdp_api.py
- https://github.com/pytorch/torchtitan/pull/2881
"""

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.precision import precision
from fsdp_migrate.families.training_loop import hooks
from fsdp_migrate.families.wrapping import models
from fsdp_migrate.families.wrapping.roles import Role, role
from fsdp_migrate.fsdp1 import references
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Finder, Keep, Rule
from fsdp_migrate.planning.shard_plan import Precision, ShardPlan, with_default


def _evaluations(study: Study, module: Module) -> Iterator[Site]:
    return references.evaluations(module)


RULE = Rule(
    code="FSDP202",
    name="mixed_precision",
    handles=(
        "FullyShardedDataParallel(mixed_precision=)",
        "MixedPrecision",
        "string(FSDP_USE_FULL_PREC_IN_EVAL)",
        "forward pre-hook",
        "forward hook",
    ),
    finders=(
        Finder(90, hooks.find_forward_hooks),
        Finder(130, _evaluations),
    ),
)

EVALUATION = RULE.handles[2]

PART = (
    "it casts its inputs, as FSDP1's root does: if this model becomes part of another FSDP model, "
    "set cast_forward_inputs=False"
)

EXAMPLES = [
    Example(
        title="a pre-hook on the wrapper",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def build(net, scaled):
    model = FSDP(net, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
    model.register_forward_pre_hook(lambda module, args: (scaled(args[0]),))
    model.register_forward_hook(lambda module, args, output: print(output.dtype))
    return model
""",
        after="""\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def build(net, scaled):
    model = fully_shard(net, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    model.register_forward_pre_hook(lambda module, args: (scaled(args[0]),), prepend=True)
    model.register_forward_hook(lambda module, args, output: print(output.dtype))
    return model
""",
    ),
    Example(
        title="several hooks on the wrapper",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def build(net, scaled, shifted):
    model = FSDP(net, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
    model.register_forward_pre_hook(lambda module, args: (scaled(args[0]),))
    model.register_forward_pre_hook(shifted, with_kwargs=True)
    model.register_forward_hook(lambda module, args, output: output * args[0].mean())
    return model
""",
        after="""\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def build(net, scaled, shifted):
    model = fully_shard(net, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    # TODO(fsdp-migrate FSDP202): Hooks that are put in front of the cast run in the reverse order: register them the other way round if their order counts.
    model.register_forward_pre_hook(lambda module, args: (scaled(args[0]),), prepend=True)
    # TODO(fsdp-migrate FSDP202): Hooks that are put in front of the cast run in the reverse order: register them the other way round if their order counts.
    model.register_forward_pre_hook(shifted, with_kwargs=True, prepend=True)
    # TODO(fsdp-migrate FSDP202): FSDP1 gave this hook the inputs as the program gives them; now they are cast to param_dtype already.
    model.register_forward_hook(lambda module, args, output: output * args[0].mean())
    return model
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="one unit",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

model = FSDP(
    model,
    mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
)
""",
        after="""\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

model = fully_shard(
    model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
)
""",
    ),
    Example(
        title="blocks do not cast their inputs, the root does",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

bf16 = MixedPrecision(
    param_dtype=torch.bfloat16,
    reduce_dtype=torch.bfloat16,  # gradients too
)
model = LlamaForCausalLM.from_pretrained("a-model")
model = FSDP(
    model,
    auto_wrap_policy=ModuleWrapPolicy({LlamaDecoderLayer}),
    mixed_precision=bf16,
)
""",
        after="""\
from dataclasses import replace

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

bf16 = MixedPrecisionPolicy(
    param_dtype=torch.bfloat16,
    reduce_dtype=torch.bfloat16,  # gradients too
    cast_forward_inputs=False,
)
model = LlamaForCausalLM.from_pretrained("a-model")
# Like FSDP1, only the root casts its inputs to param_dtype.
root_mp_policy = replace(bf16, cast_forward_inputs=True)
for module in reversed(list(model.modules())):
    if module is not model and isinstance(module, LlamaDecoderLayer):
        fully_shard(module, mp_policy=bf16)
fully_shard(model, mp_policy=root_mp_policy)
""",
    ),
    Example(
        title="a model that may hold BatchNorm layers",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from torchvision.models import resnet50
from torchvision.models.resnet import Bottleneck

model = FSDP(
    resnet50(),
    auto_wrap_policy=ModuleWrapPolicy({Bottleneck}),
    mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
)
""",
        after="""\
from dataclasses import replace

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.modules.batchnorm import _BatchNorm

from torchvision.models import resnet50
from torchvision.models.resnet import Bottleneck

model = resnet50()
mp_policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False)
# Like FSDP1, only the root casts its inputs to param_dtype.
root_mp_policy = replace(mp_policy, cast_forward_inputs=True)
# Like FSDP1, BatchNorm layers compute in fp32 and hand on the units' dtype.
batch_norm_policy = MixedPrecisionPolicy(
    param_dtype=torch.float32, output_dtype=mp_policy.param_dtype
)
for module in reversed(list(model.modules())):
    if isinstance(module, _BatchNorm):
        fully_shard(module, mp_policy=batch_norm_policy)
    elif module is not model and isinstance(module, Bottleneck):
        fully_shard(module, mp_policy=mp_policy)
fully_shard(model, mp_policy=root_mp_policy)
""",
    ),
    Example(
        title="a policy from another file, or none",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from precision import bf16


def shard(model, args):
    return FSDP(model, mixed_precision=bf16 if args.bf16 else None)
""",
        after="""\
from dataclasses import replace

from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from precision import bf16


def shard(model, args):
    mp_policy = bf16 if args.bf16 else MixedPrecisionPolicy()
    return fully_shard(model, mp_policy=replace(mp_policy, cast_forward_inputs=True))
""",
        files={
            "precision.py": (
                """\
import torch
from torch.distributed.fsdp import MixedPrecision

bf16 = MixedPrecision(
    param_dtype=torch.bfloat16,
    # Gradients are reduced in full precision.
    reduce_dtype=torch.float32,
)
""",
                """\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

bf16 = MixedPrecisionPolicy(
    param_dtype=torch.bfloat16,
    # Gradients are reduced in full precision.
    reduce_dtype=torch.float32,
    cast_forward_inputs=False,
)
""",
            ),
        },
    ),
    Example(
        title="a policy that may be none on either side",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def shard(model, args):
    half = None
    if args.half:
        half = MixedPrecision(param_dtype=torch.bfloat16)
    return FSDP(model, mixed_precision=half if not args.pure else None)
""",
        after="""\
from dataclasses import replace

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def shard(model, args):
    half = None
    if args.half:
        half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False)
    mp_policy = (half if not args.pure else None) or MixedPrecisionPolicy()
    return fully_shard(model, mp_policy=replace(mp_policy, cast_forward_inputs=True))
""",
    ),
    Example(
        title="wrapped by hand: only the whole model casts its inputs",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

bf16 = MixedPrecision(param_dtype=torch.bfloat16)


def wrap(model):
    for i, block in enumerate(model.blocks):
        model.blocks[i] = FSDP(block, mixed_precision=bf16)
    return FSDP(model, mixed_precision=bf16)
""",
        after="""\
from dataclasses import replace

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False)


def wrap(model):
    for i, block in enumerate(model.blocks):
        model.blocks[i] = fully_shard(block, mp_policy=bf16)
    return fully_shard(model, mp_policy=replace(bf16, cast_forward_inputs=True))
""",
    ),
    Example(
        title="parts deep inside of what is wrapped later",
        before="""\
import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

bf16 = MixedPrecision(param_dtype=torch.bfloat16)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = FSDP(nn.Linear(4, 4), mixed_precision=bf16)


class Net(nn.Module):
    def __init__(self, head):
        super().__init__()
        blocks = []
        for _ in range(3):
            blocks.append(FSDP(Block(), mixed_precision=bf16))
        self.blocks = nn.Sequential(*blocks)
        self.head = head


net = Net(FSDP(nn.Linear(4, 2), mixed_precision=bf16))
model = FSDP(nn.Sequential(net, nn.ReLU()), mixed_precision=bf16)
""",
        after="""\
from dataclasses import replace

import torch
import torch.nn as nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = fully_shard(nn.Linear(4, 4), mp_policy=bf16)


class Net(nn.Module):
    def __init__(self, head):
        super().__init__()
        blocks = []
        for _ in range(3):
            blocks.append(fully_shard(Block(), mp_policy=bf16))
        self.blocks = nn.Sequential(*blocks)
        self.head = head


net = Net(fully_shard(nn.Linear(4, 2), mp_policy=bf16))
model = fully_shard(
    nn.Sequential(net, nn.ReLU()), mp_policy=replace(bf16, cast_forward_inputs=True)
)
""",
    ),
    Example(
        title="a wrapper for parts and whole models alike",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def shard(module):
    return FSDP(module, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))


def build(model):
    model.encoder = shard(model.encoder)
    return shard(model)
""",
        after="""\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def shard(module):
    # TODO(fsdp-migrate FSDP202): It casts its inputs, as FSDP1's root does: if this model becomes part of another FSDP model, set cast_forward_inputs=False.
    return fully_shard(module, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))


def build(model):
    model.encoder = shard(model.encoder)
    return shard(model)
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="a policy from outside the given paths",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from somewhere import policy

model = FSDP(model, mixed_precision=policy)
""",
        after="""\
from somewhere import policy

from fsdp2_support import shard

model = shard(model, mixed_precision=policy)
""",
        support=("shard",),
    ),
    Example(
        title="a policy whose fields are set later",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def wrap(net, reduce_in_fp32):
    policy = MixedPrecision(param_dtype=torch.bfloat16)
    if reduce_in_fp32:
        policy.reduce_dtype = torch.float32
    return FSDP(net, mixed_precision=policy)
""",
        after="""\
import torch

from fsdp2_support import MixedPrecision, shard


def wrap(net, reduce_in_fp32):
    policy = MixedPrecision(param_dtype=torch.bfloat16)
    if reduce_in_fp32:
        policy.reduce_dtype = torch.float32
    return shard(net, mixed_precision=policy)
""",
        support=(
            "MixedPrecision",
            "shard",
        ),
    ),
    Example(
        title="a policy in arguments that are put together at run time",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def fsdp_kwargs(args):
    kwargs = {"device_id": args.device}
    if args.bf16:
        kwargs["mixed_precision"] = MixedPrecision(param_dtype=torch.bfloat16)
    return kwargs


def shard_model(model, args):
    return FSDP(model, **fsdp_kwargs(args))
""",
        after="""\
import torch

from fsdp2_support import MixedPrecision, shard


def fsdp_kwargs(args):
    kwargs = {"device_id": args.device}
    if args.bf16:
        kwargs["mixed_precision"] = MixedPrecision(param_dtype=torch.bfloat16)
    return kwargs


def shard_model(model, args):
    return shard(model, **fsdp_kwargs(args))
""",
        support=(
            "MixedPrecision",
            "shard",
        ),
    ),
    Example(
        title="evaluation in full precision",
        before="""\
import os

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

os.environ["FSDP_USE_FULL_PREC_IN_EVAL"] = "1"


def build(net):
    return FSDP(net, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
""",
        after="""\
import os

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

# TODO(fsdp-migrate FSDP202): FSDP2 does not read this variable: with mixed precision, evaluation computes in param_dtype like training.
os.environ["FSDP_USE_FULL_PREC_IN_EVAL"] = "1"


def build(net):
    return fully_shard(net, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="inputs that every unit casts",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from layers import Block

half = MixedPrecision(param_dtype=torch.bfloat16, cast_forward_inputs=True)


def build(net):
    return FSDP(net, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=half)
""",
        after="""\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.modules.batchnorm import _BatchNorm

from layers import Block

half = MixedPrecisionPolicy(param_dtype=torch.bfloat16)


def build(net):
    # Like FSDP1, BatchNorm layers compute in fp32 and hand on the units' dtype.
    batch_norm_policy = MixedPrecisionPolicy(
        param_dtype=torch.float32, output_dtype=half.param_dtype
    )
    for module in reversed(list(net.modules())):
        if isinstance(module, _BatchNorm):
            fully_shard(module, mp_policy=batch_norm_policy)
        elif module is not net and isinstance(module, Block):
            fully_shard(module, mp_policy=half)
    return fully_shard(net, mp_policy=half)
""",
    ),
    Example(
        title="inputs that nothing casts, gradients reduced in another dtype",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def build(net):
    reduced = MixedPrecision(reduce_dtype=torch.bfloat16, cast_root_forward_inputs=False)
    return FSDP(net, mixed_precision=reduced)
""",
        after="""\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def build(net):
    reduced = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16, cast_forward_inputs=False)
    return fully_shard(net, mp_policy=reduced)
""",
    ),
    Example(
        title="a policy that changes nothing",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def build(net):
    return FSDP(net, mixed_precision=MixedPrecision())
""",
        after="""\
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def build(net):
    return fully_shard(net, mp_policy=MixedPrecisionPolicy())
""",
    ),
    Example(
        title="classes of the project's own that stay in full precision",
        before="""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from layers import Block

half = MixedPrecision(param_dtype=torch.bfloat16, _module_classes_to_ignore=[nn.LayerNorm])


def build(net):
    return FSDP(net, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=half)
""",
        after="""\
import torch
from torch import nn
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from layers import Block

from fsdp2_support import MixedPrecision, shard

half = MixedPrecision(param_dtype=torch.bfloat16, _module_classes_to_ignore=[nn.LayerNorm])


def build(net):
    return shard(net, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=half)
""",
        support=(
            "MixedPrecision",
            "shard",
        ),
    ),
    Example(
        title="units chosen by size",
        before="""\
from functools import partial

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy


def build(net):
    policy = partial(size_based_auto_wrap_policy, min_num_params=1_000_000)
    half = MixedPrecision(param_dtype=torch.bfloat16)
    return FSDP(net, auto_wrap_policy=policy, mixed_precision=half)
""",
        after="""\
from dataclasses import replace
from functools import partial

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

from fsdp2_support import shard_by_policy


def build(net):
    policy = partial(size_based_auto_wrap_policy, min_num_params=1_000_000)
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False)
    # Like FSDP1, only the root casts its inputs to param_dtype.
    root_mp_policy = replace(half, cast_forward_inputs=True)
    # Like FSDP1, BatchNorm layers compute in fp32 and hand on the units' dtype.
    batch_norm_policy = MixedPrecisionPolicy(
        param_dtype=torch.float32, output_dtype=half.param_dtype
    )
    shard_by_policy(net, policy, batch_norm_policy=batch_norm_policy, mp_policy=half)
    return fully_shard(net, mp_policy=root_mp_policy)
""",
        support=("shard_by_policy",),
    ),
    Example(
        title="parts of a model that is not wrapped itself",
        before="""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def shard(self):
        half = MixedPrecision(param_dtype=torch.bfloat16)
        self.a = FSDP(self.a, mixed_precision=half)
        self.b = FSDP(self.b, mixed_precision=half)


net = Net()
net.shard()
""",
        after="""\
from dataclasses import replace

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def shard(self):
        half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False)
        self.a = fully_shard(self.a, mp_policy=replace(half, cast_forward_inputs=True))
        self.b = fully_shard(self.b, mp_policy=replace(half, cast_forward_inputs=True))


net = Net()
net.shard()
""",
    ),
    Example(
        title="a field that FSDP2's policy has not",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def build(net):
    policy = MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.float32)
    model = FSDP(net, mixed_precision=policy)
    print(f"compute in {policy.param_dtype}, buffers in {policy.buffer_dtype}")
    return model
""",
        after="""\
import torch

from fsdp2_support import MixedPrecision, shard


def build(net):
    policy = MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.float32)
    model = shard(net, mixed_precision=policy)
    print(f"compute in {policy.param_dtype}, buffers in {policy.buffer_dtype}")
    return model
""",
        support=(
            "MixedPrecision",
            "shard",
        ),
    ),
]

KEEP = [
    Keep(
        title="hooks on an FSDP2 model",
        source="""\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def build(net, scaled):
    model = fully_shard(net, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    model.register_forward_pre_hook(scaled)
    return model
""",
    ),
    Keep(
        title="hooks on a plain model",
        source="""\
model.register_forward_pre_hook(scaled)
model.register_forward_hook(lambda module, args, output: output * args[0].mean())
""",
    ),
    Keep(
        title="a field of other settings",
        source="""\
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def build(net, policy: MixedPrecisionPolicy, settings):
    print(f"compute in {policy.param_dtype}, buffers in {settings.buffer_dtype}")
    return fully_shard(net, mp_policy=policy)
""",
    ),
    Keep(
        title="parts that FSDP2 shards with policies of their own",
        source="""\
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Net(nn.Module):
    def shard(self, half: MixedPrecisionPolicy):
        self.a = fully_shard(self.a, mp_policy=half)
        self.b = fully_shard(self.b, mp_policy=half)
""",
    ),
    Keep(
        title="a field of another policy that is set",
        source="""\
policy = model.precision
policy.reduce_dtype = torch.float32
""",
    ),
    Keep(
        title="another library's class of the same name",
        source="""\
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.distributed.fsdp import fully_shard

precision = MixedPrecision("bf16-mixed", "cuda")
fully_shard(model)
""",
    ),
    Keep(
        title="parts and whole of a model that is already FSDP2",
        source="""\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

for block in model.blocks:
    fully_shard(block, mp_policy=MixedPrecisionPolicy(torch.bfloat16, cast_forward_inputs=False))
fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
""",
    ),
    Keep(
        title="low-precision gradients have no counterpart",
        source="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

policy = MixedPrecision(param_dtype=torch.bfloat16, keep_low_precision_grads=True)
model = FSDP(model, mixed_precision=policy)
""",
        left=True,
    ),
    Keep(
        title="FSDP2's policy",
        source="""\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
""",
    ),
    Keep(
        title="an FSDP2 policy that may be none on either side",
        source="""\
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def shard(model, args):
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if args.half else None
    return fully_shard(model, mp_policy=(half if not args.pure else None) or MixedPrecisionPolicy())
""",
    ),
    Keep(
        title="DDP's mixed precision",
        source="""\
from torch.nn.parallel.distributed import _MixedPrecision

policy = _MixedPrecision()
""",
    ),
    Keep(
        title="units in a list that are already FSDP2",
        source="""\
import torch
import torch.nn as nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False)
blocks = []
for _ in range(3):
    blocks.append(fully_shard(nn.Linear(4, 4), mp_policy=bf16))
model = fully_shard(nn.Sequential(*blocks))
""",
    ),
    Keep(
        title="autocast",
        source="""\
import torch

with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = model(batch)
""",
    ),
    Keep(
        title="a class of the project's own",
        source="""\
class MixedPrecision:
    def __init__(self, param_dtype=None):
        self.param_dtype = param_dtype


precision = MixedPrecision(param_dtype="bf16")
""",
    ),
    Keep(
        title="a precision plugin of another library",
        source="""\
from lightning.pytorch.plugins import MixedPrecision

plugin = MixedPrecision(precision="bf16-mixed", device="cuda")
""",
    ),
    Keep(
        title="another variable",
        source="""\
import os

os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "1"
""",
    ),
    Keep(
        title="the gradients' dtype in DDP's communication hook",
        source="""\
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

model.register_comm_hook(None, default_hooks.bf16_compress_hook)
""",
    ),
    Keep(
        title="modules that are cast by hand",
        source="""\
for module in model.modules():
    if isinstance(module, nn.LayerNorm):
        module.float()
""",
    ),
    Keep(
        title="accelerate's setting",
        source="""\
from accelerate import Accelerator

accelerator = Accelerator(mixed_precision="bf16")
""",
    ),
    Keep(
        title="evaluation under autocast",
        source="""\
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    loss = model(batch)
""",
    ),
    Keep(
        title="a policy that FSDP2 units share",
        source="""\
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

half = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
for block in model.blocks:
    fully_shard(block, mp_policy=half)
""",
    ),
]


def decide(site: Site, study: Study) -> Decision:
    if site.construct == EVALUATION:
        return _evaluation(site, study)
    if site.construct == "MixedPrecision":
        return _origin(site, study)
    if site.construct in {hooks.BEFORE, hooks.AFTER}:
        return _hook(site, study)
    plan, _, _ = study.argument(site)
    try:
        return _argument(site, plan, study)
    except precision.Unreadable as problem:
        return study.left(site, RULE.code, str(problem), "write the MixedPrecisionPolicy by hand")


def _hook(site: Site, study: Study) -> Decision:
    """Hooks on FSDP1's wrapper had the inputs before they were cast."""
    call = site.node
    assert isinstance(call, ast.Call)
    assert site.receiver is not None
    known = study.models(site.receiver, site.module).constructors
    if site.construct == hooks.AFTER or any(k.arg is None for k in call.keywords):
        message = "kept, with inputs that are cast"
        return study.rewritten(site, RULE.code, message, models=known, review=CAST)
    proposal = study.proposal()
    proposal.add_keyword(site.module, call, "prepend", code("True"))
    review = "" if hooks.is_alone(site, study) else REVERSED
    return study.rewritten(
        site, RULE.code, "in front of the cast", proposal, models=known, review=review
    )


CAST = (
    "FSDP1 gave this hook the inputs as the program gives them; now they are cast to param_dtype "
    "already"
)
REVERSED = (
    "hooks that are put in front of the cast run in the reverse order: register them the other "
    "way round if their order counts"
)


def _evaluation(site: Site, study: Study) -> Decision:
    """The environment variable that only FSDP1 reads."""
    return study.rewritten(
        site,
        RULE.code,
        "kept, and read by nothing any more",
        models=study.constructors.values(),
        review=(
            "FSDP2 does not read this variable: with mixed precision, evaluation computes in "
            "param_dtype like training"
        ),
    )


def _argument(site: Site, plan: ShardPlan, study: Study) -> Decision:
    value = plan.constructor.arguments["mixed_precision"]
    found, nullable = precision.read(value, site.module, study)
    if not found:
        return study.dropped(site, RULE.code, "dropped, it was None")
    place = role(plan.constructor, study)
    roots = {each.casts_root(study) for each in found}
    units = {each.casts_units(study) for each in found}
    same = units == {True} or roots == {False} or place is Role.PART
    if not same and roots != {True}:
        raise precision.Unreadable(
            "the policies that reach this call differ in cast_root_forward_inputs"
        )
    inline = len(found) == 1 and found[0].call is value
    near = plan.constructor.reference
    if inline:
        study.convert(value, None, "MixedPrecisionPolicy", plan.constructor)
        policy = precision.policy(found[0], plan.proposal, study, root=False, near=near)
        root = precision.policy(found[0], plan.proposal, study, root=True, near=near)
        plan.precision = Precision(policy, None if same else root, inline=True, same=same)
    else:
        for each in found:
            proposal = study.proposal()
            precision.convert_in_place(each, proposal, study, each.call.func)
            study.convert(each.call, None, "MixedPrecisionPolicy", plan.constructor, proposal)
        plan.precision = Precision(_named(plan, study, nullable=nullable), same=same)
    plan.batch_norm = plan.constructor.has("auto_wrap_policy") and models.may_contain(
        plan.constructor.wrapped, site.module, "BatchNorm", study
    )
    plan.further += precision.buffer_sites(found)
    if place is Role.PART:
        return study.rewritten(site, RULE.code, "mp_policy of a part, whose inputs are not cast")
    unsure = place is Role.UNKNOWN and not same
    return study.rewritten(
        site,
        RULE.code,
        "mp_policy, with inputs cast by the root only",
        review=PART if unsure else "",
    )


def _named(plan: ShardPlan, study: Study, *, nullable: bool) -> Code:
    """The policy under a name that can be used twice."""
    value = plan.constructor.arguments["mixed_precision"]
    if not nullable and access_path(value) is not None:
        return code("{v}", v=value)
    default = code("{d}()", d=plan.name("torch.distributed.fsdp", "MixedPrecisionPolicy"))
    module = plan.constructor.module
    policy = with_default(value, default, lambda v: precision.read(v, module, study)[1])
    name = plan.fresh("mp_policy")
    plan.setup.append(code("{n} = {p}", n=name, p=policy))
    return code("{n}", n=name)


def _origin(site: Site, study: Study) -> Decision:
    conversion = study.conversions.get(site.node)
    if conversion is not None:
        return study.converted(site, RULE.code, conversion)
    return _unused(site, study)


def _unused(site: Site, study: Study) -> Decision:
    """A policy that reaches no constructor here follows the others, to be looked at."""
    models = study.constructors.values()
    problem = study.no_models
    mixed = None
    if isinstance(site.node, ast.Call):
        try:
            mixed = precision.read_call(site.node, site.module, study)
        except precision.Unreadable as reason:
            problem = problem or str(reason)
    if mixed is None or problem:
        return study.left(
            site,
            RULE.code,
            problem or "MixedPrecision is used as a value",
            "migrate it together with the code that uses it",
            models=models,
        )
    proposal = study.proposal()
    precision.convert_in_place(mixed, proposal, study, site.reference)
    return study.rewritten(
        site,
        RULE.code,
        "MixedPrecisionPolicy",
        proposal,
        models=models,
        review="no FSDP model in the given paths uses this policy; its buffer_dtype, if any, is gone",
    )
