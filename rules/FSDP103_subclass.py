"""Make subclasses of `FullyShardedDataParallel` that only forward arguments functions.

## What changes
A subclass without a body, or whose `__init__` only calls FSDP1's, and that is only ever called,
becomes a function that calls `shard`, which takes FSDP1's arguments. Its calls stay as they are.

## Why
An FSDP2 model is the module itself, its class changed in place. There is no wrapper to derive from:
a subclass that overrides `forward` or keeps state of its own has to become a module, or functions.

## What stays for you
Subclasses that do more, or that something asks for by `isinstance`. Make such a one a function that
builds the module and shards it, or a plain `nn.Module` whose `__init__` ends with
`fully_shard(self)`, and run again: calls on its instances are migrated with it.

## Since torch
2.6

## References
- torch/distributed/fsdp/_fully_shard/_fully_shard.py
"""

from fsdp_migrate.construct import subclasses
from fsdp_migrate.rule import Example, Keep, Outcome, Rule
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study

RULE = Rule(code="FSDP103", name="subclass", handles=("class(FullyShardedDataParallel)",))

EXAMPLES = [
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
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


# TODO(fsdp-migrate FSDP103): An FSDP2 model is the module itself: there is no wrapper to derive from. Make it a function that builds and shards the module.
class Sharded(FSDP):
    def generate(self, prompts):
        # TODO(fsdp-migrate FSDP406): The models here are of a subclass of FSDP, which stays (FSDP103). Give the path that wraps it as well.
        return self.module.generate(prompts)


model = Sharded(model)
""",
        outcome=Outcome.LEFT,
    ),
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
        title="what is done with it",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Wrapper(FSDP):
    wrapped = True


def step(net):
    model = Wrapper(net)
    return model.clip_grad_norm_(1.0)
""",
        after="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


# TODO(fsdp-migrate FSDP103): An FSDP2 model is the module itself: there is no wrapper to derive from. Make it a function that builds and shards the module.
class Wrapper(FSDP):
    wrapped = True


def step(net):
    model = Wrapper(net)
    # TODO(fsdp-migrate FSDP401): The models here are of a subclass of FSDP, which stays (FSDP103). Give the path that wraps it as well.
    return model.clip_grad_norm_(1.0)
""",
        outcome=Outcome.LEFT,
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
]

KEEP = [
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
        title="a subclass that is asked for",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Sharded(FSDP):
    pass


def shard(model):
    return model if isinstance(model, Sharded) else Sharded(model)
""",
        left=True,
    ),
    Keep(
        title="a subclass with settings of its own",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Sharded(FSDP):
    def __init__(self, module, name):
        super().__init__(module, use_orig_params=True)
        self.name = name


model = Sharded(model, "policy")
""",
        left=True,
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
