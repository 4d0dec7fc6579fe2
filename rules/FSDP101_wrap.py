"""Wrap a model with `fully_shard` instead of `FullyShardedDataParallel`.

## What changes
`FullyShardedDataParallel(model, ...)` becomes one `fully_shard` call per block, children first, and
one for the root. The model stays the same object: assignments, returns and nested calls keep
working. Arguments are the business of the rules they are named after.

Where the arguments are only known at run time (`**kwargs`, `functools.partial`, a policy from
outside), where the class is chosen first (`(FSDP if flag else DDP)(model)`), or where no statements
can stand (comprehensions, lambdas), a support function `shard` takes FSDP1's own arguments and
shards unit by unit as FSDP1 did. The project then keeps its settings: `MixedPrecision`, `ShardingStrategy` and the others come from the support module.

## Why
FSDP1 wraps modules in new objects around flat parameters. FSDP2 shards every parameter by itself
(`DTensor`) and changes the module in place, so names, `isinstance` and checkpoints stay clean. A
root call is always emitted: parameters that no `fully_shard` call covers are not reduced, without
an error.

A model made under `torch.device("meta")` takes `shard` too: it gives every unit memory and calls
`reset_parameters`, as FSDP1 did.

## What stays for you
Subclasses of `FullyShardedDataParallel`, and arguments that FSDP1 itself refuses. What
`fully_shard` refuses: an `nn.ModuleList` or `nn.ModuleDict`, a scripted module, a module that is
sharded already, a part of a model that is sharded before it. And a module whose class has a method
of its own that is called like one of FSDP2's, such as `unshard`: FSDP1's wrapper handed it on,
`fully_shard` puts its own in front of it.

## Since torch
2.6 (`torch.distributed.fsdp.fully_shard`)

## References
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- torch/distributed/fsdp/_fully_shard/_fully_shard.py
"""

from fsdp_migrate.families.modules import checkpointing
from fsdp_migrate.families.wrapping import wrapped
from fsdp_migrate.families.wrapping.methods import plan_registration
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.rule import Example, Keep, Rule
from fsdp_migrate.planning.shard_plan import placement_problem, render

RULE = Rule(
    code="FSDP101",
    name="wrap",
    handles=("FullyShardedDataParallel()", "partial(FullyShardedDataParallel)"),
)

EXAMPLES = [
    Example(
        title="a model without a policy is one unit",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    model = FSDP(model)
    return model
""",
        after="""\
from torch.distributed.fsdp import fully_shard

def build(model):
    model = fully_shard(model)
    return model
""",
    ),
    Example(
        title="a constructor that is returned",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def wrap(net):
    return FSDP(module=net, limit_all_gathers=True)  # one unit
""",
        after="""\
from torch.distributed.fsdp import fully_shard

def wrap(net):
    return fully_shard(net)  # one unit
""",
    ),
    Example(
        title="manual wrapping inside a container",
        before="""\
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

net = nn.Sequential(FSDP(nn.Linear(4, 4)), nn.ReLU(), FSDP(nn.Linear(4, 4)))
net = FSDP(net)
""",
        after="""\
import torch.nn as nn
from torch.distributed.fsdp import fully_shard

net = nn.Sequential(fully_shard(nn.Linear(4, 4)), nn.ReLU(), fully_shard(nn.Linear(4, 4)))
net = fully_shard(net)
""",
    ),
    Example(
        title="an attribute is wrapped, with a policy",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from layers import Block


class Trainer:
    def __init__(self, model):
        self.model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}))
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from layers import Block


class Trainer:
    def __init__(self, model):
        for module in reversed(list(model.modules())):
            if module is not model and isinstance(module, Block):
                fully_shard(module)
        self.model = fully_shard(model)
""",
    ),
    Example(
        title="the model is made in the call",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from layers import Block, Net

model = FSDP(Net().cuda(), auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from layers import Block, Net

model = Net().cuda()
for module in reversed(list(model.modules())):
    if module is not model and isinstance(module, Block):
        fully_shard(module)
fully_shard(model)
""",
    ),
    Example(
        title="the model is made in the call, for an attribute",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from layers import Block, Net


class Trainer:
    def __init__(self):
        self.model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Block}))
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from layers import Block, Net


class Trainer:
    def __init__(self):
        model = Net()
        for module in reversed(list(model.modules())):
            if module is not model and isinstance(module, Block):
                fully_shard(module)
        self.model = fully_shard(model)
""",
    ),
    Example(
        title="the whole module is imported",
        before="""\
import torch.distributed.fsdp as fsdp

model = fsdp.FullyShardedDataParallel(model)
""",
        after="""\
import torch.distributed.fsdp as fsdp

model = fsdp.fully_shard(model)
""",
    ),
    Example(
        title="arguments that are only known at run time",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def wrap(model, **kwargs):
    return FSDP(model, **kwargs)
""",
        after="""\
from fsdp2_support import shard

def wrap(model, **kwargs):
    return shard(model, **kwargs)
""",
        support=("shard",),
    ),
    Example(
        title="a model that is wrapped in one way or another",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

def wrap(model, half, **kwargs):
    if half:
        model = FSDP(model, mixed_precision=MixedPrecision(torch.bfloat16), **kwargs)
    else:
        model = FSDP(model, **kwargs)
    return model
""",
        after="""\
import torch

from fsdp2_support import MixedPrecision, shard

def wrap(model, half, **kwargs):
    if half:
        model = shard(model, mixed_precision=MixedPrecision(torch.bfloat16), **kwargs)
    else:
        model = shard(model, **kwargs)
    return model
""",
        support=(
            "MixedPrecision",
            "shard",
        ),
    ),
    Example(
        title="a policy where no statement can stand",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from layers import Block

wrapped = [FSDP(m, auto_wrap_policy=ModuleWrapPolicy({Block})) for m in models]
""",
        after="""\
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from layers import Block

from fsdp2_support import shard

wrapped = [shard(m, auto_wrap_policy=ModuleWrapPolicy({Block})) for m in models]
""",
        support=("shard",),
    ),
    Example(
        title="a model on the meta device",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from models import Net

with torch.device("meta"):
    net = Net()
model = FSDP(net, device_id=torch.cuda.current_device())
""",
        after="""\
import torch

from models import Net

from fsdp2_support import shard

with torch.device("meta"):
    net = Net()
model = shard(net, device_id=torch.cuda.current_device())
""",
        support=("shard",),
    ),
    Example(
        title="the element of a container, an attribute, an argument",
        before="""\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, net, device):
        for i, layer in enumerate(net.layers):
            net.layers[i] = FSDP(layer)
        for name, head in net.heads.named_children():
            setattr(net.heads, name, FSDP(module=head))
        self.net: nn.Module = FSDP(net.to(device))
""",
        after="""\
from torch import nn
from torch.distributed.fsdp import fully_shard


class Trainer:
    def __init__(self, net, device):
        for i, layer in enumerate(net.layers):
            net.layers[i] = fully_shard(layer)
        for name, head in net.heads.named_children():
            setattr(net.heads, name, fully_shard(head))
        self.net: nn.Module = fully_shard(net.to(device))
""",
    ),
    Example(
        title="arguments bound by functools.partial",
        before="""\
from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

wrap = partial(FSDP, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, use_orig_params=True)
model = wrap(model)
""",
        after="""\
from functools import partial

from fsdp2_support import ShardingStrategy, shard

wrap = partial(shard, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, use_orig_params=True)
model = wrap(model)
""",
        support=(
            "ShardingStrategy",
            "shard",
        ),
    ),
    Example(
        title="settings in a dictionary, everything imported by a star",
        before="""\
from torch.distributed.fsdp import *
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

settings = dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, use_orig_params=True)


def build(net):
    return FSDP(net, **settings)
""",
        after="""\
from torch.distributed.fsdp import *

from fsdp2_support import ShardingStrategy, shard

settings = dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, use_orig_params=True)


def build(net):
    return shard(net, **settings)
""",
        support=(
            "ShardingStrategy",
            "shard",
        ),
    ),
    Example(
        title="a name of the project's own for the class",
        before="""\
from typing import TypeAlias

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

FSDP1Module: TypeAlias = FSDP


def build(net) -> FSDP1Module:
    return FSDP1Module(net, use_orig_params=True)


def is_wrapped(model) -> bool:
    return isinstance(model, FSDP1Module)
""",
        after="""\
from typing import TypeAlias

from torch.distributed.fsdp import FSDPModule, fully_shard

FSDP1Module: TypeAlias = FSDPModule


def build(net) -> FSDP1Module:
    return fully_shard(net)


def is_wrapped(model) -> bool:
    return isinstance(model, FSDPModule)
""",
    ),
    Example(
        title="a class that is chosen first",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def build(net, head, flag):
    wrapper = FSDP if flag else DDP
    model = wrapper(net)
    return model, (FSDP if flag else DDP)(head)
""",
        after="""\
from torch.nn.parallel import DistributedDataParallel as DDP

from fsdp2_support import shard


def build(net, head, flag):
    wrapper = shard if flag else DDP
    model = wrapper(net)
    return model, (shard if flag else DDP)(head)
""",
        support=("shard",),
    ),
]

KEEP = [
    Keep(
        title="a function that is chosen first",
        source="""\
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP


def build(net, flag):
    return (fully_shard if flag else DDP)(net)
""",
    ),
    Keep(
        title="a name of the project's own for another class",
        source="""\
from typing import TypeAlias

from torch.nn.parallel import DistributedDataParallel as DDP

Wrapper: TypeAlias = DDP


def build(net) -> Wrapper:
    return Wrapper(net)
""",
    ),
    Keep(
        title="a model that is wrapped twice, with arguments from elsewhere",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net, settings):
    return FSDP(FSDP(net, **settings), **settings)
""",
        left=True,
    ),
    Keep(
        title="fairscale's class of the same name",
        source="""\
from fairscale.nn import FullyShardedDataParallel as FSDP

model = FSDP(model)
""",
    ),
    Keep(
        title="a class of the project's own",
        source="""\
class FSDP:
    def __init__(self, module):
        self.module = module


model = FSDP(model)
""",
    ),
    Keep(
        title="an attribute that is wrapped by something else",
        source="""\
from training.wrappers import FullyShardedDataParallel


class Trainer:
    def __init__(self):
        self.model = FullyShardedDataParallel(Net(), auto_wrap_policy=by_size)
""",
    ),
    Keep(
        title="torch_xla's class",
        source="""\
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP

model = FSDP(model)
""",
    ),
    Keep(
        title="an attribute that FSDP2 sharded",
        source="""\
from torch.distributed.fsdp import fully_shard


class Trainer:
    def __init__(self):
        self.model = fully_shard(Net())
""",
    ),
    Keep(
        title="a name that only looks like it",
        source="""\
def fsdp(model):
    return model


model = fsdp(model)
""",
    ),
    Keep(
        title="a model with a method that FSDP2's would hide",
        source="""\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def unshard(self):
        return self.merged


def build():
    return FSDP(Net())
""",
        left=True,
    ),
    Keep(
        title="a model with a part whose method FSDP2's would hide",
        source="""\
from functools import partial

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy


class Table(nn.Module):
    def reshard(self, parts):
        self.parts = parts


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = Table()


def build(**settings):
    policy = partial(size_based_auto_wrap_policy, min_num_params=100)
    return FSDP(Net(), auto_wrap_policy=policy, **settings)
""",
        left=True,
    ),
    Keep(
        title="a subclass of the wrapper",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Sharded(FSDP):
    def state_dict(self):
        return {"model": super().state_dict()}


model = Sharded(model)
""",
        left=True,
    ),
    Keep(
        title="an argument that FSDP1 does not have",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, mixed_precisions=None)
""",
        left=True,
    ),
    Keep(
        title="a call without a model",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP()
""",
        left=True,
    ),
    Keep(
        title="DistributedDataParallel with the same arguments",
        source="""\
import functools

from torch.nn.parallel import DistributedDataParallel

wrap = functools.partial(DistributedDataParallel, device_ids=[0])
model = wrap(model, **options)
""",
    ),
    Keep(
        title="a module that is wrapped twice",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(FSDP(model))
""",
        left=True,
    ),
    Keep(
        title="one module wrapped under two names",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from models import Net

net = Net()
student = FSDP(net)
teacher = FSDP(net)
""",
        left=True,
    ),
    Keep(
        title="the parts after the whole",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
model.head = FSDP(model.head)
""",
        left=True,
    ),
    Keep(
        title="a list of modules",
        source="""\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

layers = FSDP(nn.ModuleList(nn.Linear(4, 4) for _ in range(2)))
""",
        left=True,
    ),
    Keep(
        title="a scripted module",
        source="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from models import Net

model = FSDP(torch.jit.script(Net()))
""",
        left=True,
    ),
    Keep(
        title="a model whose initialisation is put off by torchdistX",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torchdistx.deferred_init import deferred_init

from models import Net

model = FSDP(deferred_init(Net))
""",
        left=True,
    ),
]


def decide(site: Site, study: Study) -> Decision:
    constructor = study.constructors[site.node]
    models = [constructor]
    if constructor.problem:
        never = None
        if "module" in constructor.arguments:
            never = wrapped.in_any_form(constructor, study)
        if never is not None:
            return study.left(
                site,
                RULE.code,
                never.reason,
                never.help,
                models=[constructor, *never.models],
                quiet=bool(never.models),
                final=True,
            )
        return study.left(
            site,
            RULE.code,
            f"the arguments of FSDP cannot be read: {constructor.problem}",
            "write them out at the call",
            models=models,
        )
    refused = wrapped.refusal(constructor, study)
    if refused is not None:
        return study.left(
            site,
            RULE.code,
            refused.reason,
            refused.help,
            models=[constructor, *refused.models],
            quiet=bool(refused.models),  # one FSDP in the other
            final=refused.final,
        )
    plan = study.plans[constructor]
    plan_registration(plan, study)
    if not plan.is_compact:
        problem = placement_problem(constructor)
        if problem:
            return study.left(
                site,
                RULE.code,
                f"several statements are needed in place of this FSDP call, but {problem}",
                "assign the wrapped model to a name in a statement of its own",
                models=models,
            )
    late = checkpointing.following(constructor, study)
    if late is not None:
        checkpointing.move_behind(plan, late, study)
    render(plan)
    return study.rewritten(site, RULE.code, "fully_shard", plan.proposal, models=models)
