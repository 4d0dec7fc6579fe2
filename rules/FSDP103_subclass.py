"""Make subclasses of `FullyShardedDataParallel` functions, or modules around the sharded one.

## What changes
A subclass without a body, or whose `__init__` only calls FSDP1's, and that is only ever called,
becomes a function that calls `shard`, which takes FSDP1's arguments. Its calls stay as they are.

A subclass with methods, an `__init__` that builds the model, or a `__call__` of its own stays a
class. Its base becomes `ShardedModule`, which holds the wrapped module as FSDP1's wrapper did and
takes the same arguments: `self.module`, `super().__call__(...)`, `super().forward(...)`,
`isinstance` and classes derived from it go on as they were. States keep the names of the wrapped
module.

## Why
An FSDP2 model is the module itself, its class changed in place. A class that adds something to a
wrapper needs a wrapper: a plain module, whose outermost unit is itself.

## What stays for you
Subclasses that override what FSDP1 says of itself (`no_sync`, `optim_state_dict`, a private method;
`state_dict` but under `with FSDP.state_dict_type(self, ...)`), ask `super()` for it, go past FSDP1's
`forward`, have other bases whose code is not in the given paths, or are handed on to code that makes
their instances out of sight (a registry's `register` and `build` are followed). Make such a one a function that builds the module and shards it, or a plain
`nn.Module` whose `__init__` ends with `fully_shard(self)`, and run again: calls on its instances
are migrated with it.

Under mixed precision a `forward` around FSDP1's is marked for review: FSDP2 casts what the model is
called with, FSDP1 cast what that `forward` handed on.

## Since torch
2.6

## References
- torch/distributed/fsdp/_fully_shard/_fully_shard.py
- torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py
"""

from fsdp_migrate.families.subclasses import subclasses
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(code="FSDP103", name="subclass", handles=("class(FullyShardedDataParallel)",))

EXAMPLES = [
    Example(
        title="a model that builds itself",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Model(FSDP):
    def __init__(self, net):
        super().__init__(net, limit_all_gathers=True)
""",
        after="""\
from fsdp2_support import shard


def Model(net):
    return shard(net, limit_all_gathers=True)
""",
        support=("shard",),
    ),
    Example(
        title="settled arguments",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Sharded(FSDP):
    "Sharded as everywhere in this project."

    def __init__(self, module, **kwargs):
        super().__init__(module, use_orig_params=True, **kwargs)


def build(net, rank):
    model = Sharded(net, device_id=rank)
    optimizer = torch.optim.AdamW(model.parameters())
    return model, optimizer
""",
        after="""\
import torch

from fsdp2_support import shard


def Sharded(module, **kwargs):
    "Sharded as everywhere in this project."
    return shard(module, use_orig_params=True, **kwargs)


def build(net, rank):
    model = Sharded(net, device_id=rank)
    optimizer = torch.optim.AdamW(model.parameters())
    return model, optimizer
""",
        support=("shard",),
    ),
    Example(
        title="another name",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel


class FSDP(FullyShardedDataParallel):
    pass


def build(net):
    model = FSDP(net)
    torch.save(model.state_dict(), "model.pt")
    return model
""",
        after="""\
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from fsdp2_support import shard


def FSDP(*args, **kwargs):
    return shard(*args, **kwargs)


def build(net):
    model = FSDP(net)
    torch.save(get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True)
    ), "model.pt")
    return model
""",
        support=("shard",),
    ),
    Example(
        title="arguments with defaults",
        before="""\
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


class Unit(FSDP):
    def __init__(self, module: nn.Module, strategy=ShardingStrategy.SHARD_GRAD_OP):
        super().__init__(module, sharding_strategy=strategy)


class Net(nn.Module):
    def __init__(self, make, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(Unit(make()) for _ in range(blocks))


model = FSDP(Net(make, 4), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
""",
        after="""\
import torch.nn as nn
from torch.distributed.fsdp import fully_shard

from fsdp2_support import ShardingStrategy, shard


def Unit(module: nn.Module, strategy=ShardingStrategy.SHARD_GRAD_OP):
    return shard(module, sharding_strategy=strategy, is_root=False)


class Net(nn.Module):
    def __init__(self, make, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(Unit(make()) for _ in range(blocks))


model = fully_shard(Net(make, 4), reshard_after_forward=False)
""",
        support=(
            "ShardingStrategy",
            "shard",
        ),
    ),
    Example(
        title="a wrapper with a method more",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Sharded(FSDP):
    def generate(self, prompts):
        return self.module.generate(prompts)


model = Sharded(model)
""",
        after="""\
from fsdp2_support import ShardedModule


class Sharded(ShardedModule):
    def generate(self, prompts):
        return self.module.generate(prompts)


model = Sharded(model)
""",
        support=("ShardedModule",),
    ),
    Example(
        title="a model that builds itself, and is called in its own way",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from project.model import Block, Net


class Policy(FSDP):
    def __init__(self, dim, strategy="FULL_SHARD"):
        net = Net(dim)
        super().__init__(
            net,
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            sharding_strategy=ShardingStrategy[strategy],
            limit_all_gathers=True,
        )
        self.dim = dim

    def __call__(self, batch):
        return super().__call__(**batch)["loss"]


def train(batches):
    model = Policy(64)
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches:
        model(batch).backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    torch.save(model.state_dict(), "model.pt")
""",
        after="""\
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from project.model import Block, Net

from fsdp2_support import ShardedModule, ShardingStrategy


class Policy(ShardedModule):
    def __init__(self, dim, strategy="FULL_SHARD"):
        net = Net(dim)
        super().__init__(
            net,
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            sharding_strategy=ShardingStrategy[strategy],
            limit_all_gathers=True,
        )
        self.dim = dim

    def __call__(self, batch):
        return super().__call__(**batch)["loss"]


def train(batches):
    model = Policy(64)
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches:
        model(batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    torch.save(get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True)
    ), "model.pt")
""",
        support=(
            "ShardedModule",
            "ShardingStrategy",
        ),
    ),
    Example(
        title="a forward that changes inputs",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision


class Scaled(FSDP):
    def forward(self, x, scale):
        return super().forward(x * scale)


def build(net):
    return Scaled(net, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
""",
        after="""\
import torch

from fsdp2_support import MixedPrecision, ShardedModule


# TODO(fsdp-migrate FSDP103): Inputs are now cast before this class's forward, where FSDP1 cast what that hands on.
class Scaled(ShardedModule):
    def forward(self, x, scale):
        return super().forward(x * scale)


def build(net):
    return Scaled(net, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
""",
        outcome=Outcome.REVIEW,
        support=(
            "MixedPrecision",
            "ShardedModule",
        ),
    ),
    Example(
        title="a forward around FSDP1's",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision


class Timed(FSDP):
    def forward(self, *args, **kwargs):
        with torch.profiler.record_function("forward"):
            return super().forward(*args, **kwargs)


def build(net):
    return Timed(net, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
""",
        after="""\
import torch

from fsdp2_support import MixedPrecision, ShardedModule


class Timed(ShardedModule):
    def forward(self, *args, **kwargs):
        with torch.profiler.record_function("forward"):
            return super().forward(*args, **kwargs)


def build(net):
    return Timed(net, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
""",
        support=(
            "MixedPrecision",
            "ShardedModule",
        ),
    ),
    Example(
        title="a subclass that is asked for",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Sharded(FSDP):
    pass


def shard(model):
    return model if isinstance(model, Sharded) else Sharded(model)
""",
        after="""\
from fsdp2_support import ShardedModule


class Sharded(ShardedModule):
    pass


def shard(model):
    return model if isinstance(model, Sharded) else Sharded(model)
""",
        support=("ShardedModule",),
    ),
    Example(
        title="classes derived from it",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Counted(FSDP):
    steps = 0

    def __init__(self, module, name, **kwargs):
        super(Counted, self).__init__(module, use_orig_params=True, **kwargs)
        self.name = name

    def clip(self, norm):
        self.steps += 1
        return self.clip_grad_norm_(norm)


class Critic(Counted):
    def __init__(self, module):
        super().__init__(module, "critic", device_id=torch.cuda.current_device())


def train(net, value, batches):
    policy, critic = Counted(net, "policy"), Critic(value)
    parameters = [*policy.parameters(), *critic.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    for x in batches:
        (policy(x) - critic(x)).square().mean().backward()
        policy.clip(1.0)
        critic.clip(1.0)
        optimizer.step()
        optimizer.zero_grad()
""",
        after="""\
import torch

from fsdp2_support import ShardedModule, clip_grad_norm_


class Counted(ShardedModule):
    steps = 0

    def __init__(self, module, name, **kwargs):
        super(Counted, self).__init__(module, use_orig_params=True, **kwargs)
        self.name = name

    def clip(self, norm):
        self.steps += 1
        return clip_grad_norm_(self, norm)


class Critic(Counted):
    def __init__(self, module):
        super().__init__(module, "critic", device_id=torch.cuda.current_device())


def train(net, value, batches):
    policy, critic = Counted(net, "policy"), Critic(value)
    parameters = [*policy.parameters(), *critic.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    for x in batches:
        (policy(x) - critic(x)).square().mean().backward()
        policy.clip(1.0)
        critic.clip(1.0)
        optimizer.step()
        optimizer.zero_grad()
""",
        support=(
            "ShardedModule",
            "clip_grad_norm_",
        ),
    ),
    Example(
        title="a state dict of its own",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Policy(FSDP):
    def state_dict(self, *args, **kwargs):
        return {"policy": super().state_dict(*args, **kwargs)}


def save(net):
    model = Policy(net)
    torch.save(model.state_dict(), "policy.pt")
""",
        after="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


# TODO(fsdp-migrate FSDP103): It cannot be a module around the sharded one: it overrides state_dict. Make it a function that builds and shards the module.
class Policy(FSDP):
    def state_dict(self, *args, **kwargs):
        return {"policy": super().state_dict(*args, **kwargs)}


def save(net):
    model = Policy(net)
    # TODO(fsdp-migrate FSDP302): The models here are of a subclass of FSDP, which stays (FSDP103). Give the path that wraps it as well.
    torch.save(model.state_dict(), "policy.pt")
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="parts of a model",
        before="""\
import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision


class Unit(FSDP):
    def width(self):
        return self.module.dim


class Net(nn.Module):
    def __init__(self, make):
        super().__init__()
        half = MixedPrecision(param_dtype=torch.bfloat16)
        self.blocks = nn.ModuleList(Unit(make(), mixed_precision=half) for _ in range(4))


def build(make):
    model = FSDP(Net(make))
    model.clip_grad_norm_(1.0)
    return model
""",
        after="""\
import torch
import torch.nn as nn
from torch.distributed.fsdp import fully_shard

from fsdp2_support import MixedPrecision, ShardedModule


class Unit(ShardedModule):
    def width(self):
        return self.module.dim


class Net(nn.Module):
    def __init__(self, make):
        super().__init__()
        half = MixedPrecision(param_dtype=torch.bfloat16)
        self.blocks = nn.ModuleList(Unit(
            make(), mixed_precision=half, is_root=False
        ) for _ in range(4))


def build(make):
    model = fully_shard(Net(make))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return model
""",
        support=(
            "MixedPrecision",
            "ShardedModule",
        ),
    ),
    Example(
        title="made by a registry",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from project.registry import WRAPPERS


@WRAPPERS.register_module()
class Sharded(FSDP):
    def train_step(self, batch):
        return self(**batch)["loss"]


@WRAPPERS.register_module()
class Plain(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module


class Strategy:
    def __init__(self, config):
        self.config = config

    def prepare(self, net):
        self.model = WRAPPERS.build(self.config, default_args=dict(module=net))

    def save(self, path):
        torch.save(self.model.state_dict(), path)
""",
        after="""\
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from project.registry import WRAPPERS

from fsdp2_support import ShardedModule


@WRAPPERS.register_module()
class Sharded(ShardedModule):
    def train_step(self, batch):
        return self(**batch)["loss"]


@WRAPPERS.register_module()
class Plain(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module


class Strategy:
    def __init__(self, config):
        self.config = config

    def prepare(self, net):
        self.model = WRAPPERS.build(self.config, default_args=dict(module=net))

    def save(self, path):
        torch.save(get_model_state_dict(
            self.model, options=StateDictOptions(full_state_dict=True)
        ), path)
""",
        support=("ShardedModule",),
    ),
    Example(
        title="states of one kind",
        before="""\
import torch
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Saving(FSDP):
    def __init__(self, model, state_dict_type, rank0_only=True, **kwargs):
        self.state_dict_type = state_dict_type
        self.rank0_only = rank0_only
        super().__init__(model, **kwargs)

    def forward(self, *args, **kwargs):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return super().forward(*args, **kwargs)

    def state_dict(self, *args, **kwargs):
        config = FullStateDictConfig(offload_to_cpu=True, rank0_only=self.rank0_only)
        with FSDP.state_dict_type(self, self.state_dict_type, config):
            return super().state_dict(*args, **kwargs)

    def load_state_dict(self, state, *args, **kwargs):
        with FSDP.state_dict_type(self, StateDictType.FULL_STATE_DICT):
            return super().load_state_dict(state, *args, **kwargs)


def save(net, path):
    model = Saving(net, StateDictType.FULL_STATE_DICT, use_orig_params=True)
    torch.save({"model": model.state_dict()}, path)
    model.load_state_dict(torch.load(path)["model"])
""",
        after="""\
import torch

from fsdp2_support import FullStateDictConfig, ShardedModule, StateDictType, state_dict_type


class Saving(ShardedModule):
    def __init__(self, model, state_dict_type, rank0_only=True, **kwargs):
        self.state_dict_type = state_dict_type
        self.rank0_only = rank0_only
        super().__init__(model, **kwargs)

    def forward(self, *args, **kwargs):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return super().forward(*args, **kwargs)

    def state_dict(self, *args, **kwargs):
        config = FullStateDictConfig(offload_to_cpu=True, rank0_only=self.rank0_only)
        with state_dict_type(self, self.state_dict_type, config):
            return super().state_dict(*args, **kwargs)

    def load_state_dict(self, state, *args, **kwargs):
        with state_dict_type(self, StateDictType.FULL_STATE_DICT):
            return super().load_state_dict(state, *args, **kwargs)


def save(net, path):
    model = Saving(net, StateDictType.FULL_STATE_DICT, use_orig_params=True)
    torch.save({"model": model.state_dict()}, path)
    model.load_state_dict(torch.load(path)["model"])
""",
        support=(
            "FullStateDictConfig",
            "ShardedModule",
            "StateDictType",
            "state_dict_type",
        ),
    ),
]

KEEP = [
    Keep(
        title="a subclass with a method that FSDP2's modules have",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Sharded(FSDP):
    def unshard(self):
        return "mine"


model = Sharded(model)
""",
        left=True,
    ),
    Keep(
        title="a subclass that is got by its name",
        source="""\
import sys

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Sharded(FSDP):
    def width(self):
        return self.dim


model = getattr(sys.modules[__name__], "Sharded")(model)
""",
        left=True,
    ),
    Keep(
        title="a subclass with sharded states of its own",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType


class Wrapper(FSDP):
    def state_dict(self, *args, **kwargs):
        with FSDP.state_dict_type(self, StateDictType.SHARDED_STATE_DICT):
            return super().state_dict(*args, **kwargs)


model = Wrapper(model)
""",
        left=True,
    ),
    Keep(
        title="a registered class that is made elsewhere",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from project.registry import WRAPPERS


@WRAPPERS.register_module()
class Sharded(FSDP):
    def train_step(self, batch):
        return self(**batch)["loss"]
""",
        left=True,
    ),
    Keep(
        title="a subclass that enable_wrap wraps with",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap


class Unit(FSDP):
    def width(self):
        return self.module.dim


def build(net, block):
    with enable_wrap(wrapper_cls=Unit):
        net.block = wrap(block)
    return net
""",
        left=True,
    ),
    Keep(
        title="a subclass with a metaclass",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Policy(FSDP, metaclass=Registered):
    pass


model = Policy(model)
""",
        left=True,
    ),
    Keep(
        title="a subclass that calls FSDP1's constructor in two ways",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Sharded(FSDP):
    def __init__(self, module, plain):
        if plain:
            super().__init__(module)
        else:
            super().__init__(module, use_orig_params=True)


model = Sharded(model, False)
""",
        left=True,
    ),
    Keep(
        title="a subclass that asks FSDP1's class for its state",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Sharded(FSDP):
    def save(self, path):
        torch.save(super().state_dict(), path)


model = Sharded(model)
""",
        left=True,
    ),
    Keep(
        title="a subclass that replaces a private method",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Sharded(FSDP):
    def _lazy_init(self):
        return super()._lazy_init()


model = Sharded(model)
""",
        left=True,
    ),
    Keep(
        title="a forward that goes past FSDP1's",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Timed(FSDP):
    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


model = Timed(model)
""",
        left=True,
    ),
    Keep(
        title="a subclass with a state dict of its own",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Policy(FSDP):
    def state_dict(self, *args, **kwargs):
        return {"policy": super().state_dict(*args, **kwargs)}


model = Policy(model)
""",
        left=True,
    ),
    Keep(
        title="a plain module around another",
        source="""\
import torch.nn as nn


class Sharded(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def generate(self, prompts):
        return self.module.generate(prompts)
""",
    ),
    Keep(
        title="a subclass of fairscale's wrapper",
        source="""\
from fairscale.nn import FullyShardedDataParallel as FSDP


class Sharded(FSDP):
    pass
""",
    ),
    Keep(
        title="a strategy of Lightning's",
        source="""\
from lightning.pytorch.strategies import FSDPStrategy


class Strategy(FSDPStrategy):
    pass
""",
    ),
    Keep(
        title="a subclass of FSDP2's class",
        source="""\
from torch.distributed.fsdp import FSDPModule


class Sharded(FSDPModule):
    pass
""",
    ),
    Keep(
        title="a subclass of two classes",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from project.mixins import Savable


class Sharded(Savable, FSDP):
    pass


model = Sharded(model)
""",
        left=True,
    ),
]


def decide(site: Site, study: Study) -> Decision:
    return subclasses.left(site, study)
