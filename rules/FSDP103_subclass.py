"""Leave subclasses of `FullyShardedDataParallel`, with what to make of them.

## What changes
Nothing: the class and what is done with its instances stay FSDP1.

## Why
An FSDP2 model is the module itself, its class changed in place. There is no wrapper to derive from:
a subclass that overrides `forward` or keeps state of its own has to become a module, or functions.

## What stays for you
Make it a function that builds the module and shards it, or a plain `nn.Module` whose `__init__`
ends with `fully_shard(self)`, and run again: calls on its instances are migrated with it.

## Since torch
2.6

## References
- torch/distributed/fsdp/_fully_shard/_fully_shard.py
"""

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
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


# TODO(fsdp-migrate FSDP103): An FSDP2 model is the module itself: there is no wrapper to derive from. Make it a function that builds and shards the module.
class Model(FSDP):
    def __init__(self, net):
        super().__init__(net, limit_all_gathers=True)
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="what is done with it",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Wrapper(FSDP):
    pass


def step(net):
    model = Wrapper(net)
    return model.clip_grad_norm_(1.0)
""",
        after="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


# TODO(fsdp-migrate FSDP103): An FSDP2 model is the module itself: there is no wrapper to derive from. Make it a function that builds and shards the module.
class Wrapper(FSDP):
    pass


def step(net):
    model = Wrapper(net)
    # TODO(fsdp-migrate FSDP401): The models here are of a subclass of FSDP, which stays (FSDP103). Give the path that wraps it as well.
    return model.clip_grad_norm_(1.0)
""",
        outcome=Outcome.LEFT,
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
]


def decide(site: Site, study: Study) -> Decision:
    return study.left(
        site,
        RULE.code,
        "an FSDP2 model is the module itself: there is no wrapper to derive from",
        "make it a function that builds and shards the module",
    )
