"""Leave optimizers whose steps fail on sharded parameters.

## What changes
Nothing at the optimizer. The model is migrated.

## Why
`LBFGS` works on one vector of all parameters. FSDP1's were flat pieces of it; FSDP2's are `DTensor`s
of the whole shape, which cannot be flattened across a sharded dimension: the first step fails
(`aten.view`). The steps of `Adafactor` and `Rprop` change in place what is laid out otherwise than the
`DTensor` that they read, and fail as well. FSDP1's flat pieces were plain tensors to them.

## What stays for you
Another optimizer, or an LBFGS on `p.to_local()` of every parameter, with dot products that are
reduced over the ranks. FSDP1's Adafactor had vectors to factor, and kept the whole second moment.

## Since torch
2.6

## References
- torch/optim/lbfgs.py
- torch/optim/_adafactor.py
- torch/optim/rprop.py
"""

from fsdp_migrate.families.training_loop import ordering
from fsdp_migrate.families.training_loop.ordering import UNSUPPORTED
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Finder, Keep, Rule

RULE = Rule(
    code="FSDP410",
    name="flattening_optimizer",
    handles=("optimizer that flattens", "optimizer without DTensors"),
    finders=(Finder(30, ordering.find_flattening_optimizers),),
)

EXAMPLES = [
    Example(
        title="Adafactor on a sharded model",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    model = FSDP(net, use_orig_params=True)
    return model, torch.optim.Adafactor(model.parameters(), lr=0.1)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard


def build(net):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP410): The first step of this optimizer fails on sharded parameters. Take another optimizer.
    return model, torch.optim.Adafactor(model.parameters(), lr=0.1)
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="LBFGS on a sharded model",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    model = FSDP(net, use_orig_params=True)
    return model, torch.optim.LBFGS(model.parameters(), lr=0.1)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard


def build(net):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP410): LBFGS flattens parameters, which fails on sharded ones of the whole shape. Take another optimizer.
    return model, torch.optim.LBFGS(model.parameters(), lr=0.1)
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="imported by name, in a function of its own",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.optim import LBFGS


def optimizer_of(model):
    return LBFGS(list(model.parameters()))


def build(net):
    model = FSDP(net, use_orig_params=True)
    return optimizer_of(model)
""",
        after="""\
from torch.distributed.fsdp import fully_shard
from torch.optim import LBFGS


def optimizer_of(model):
    # TODO(fsdp-migrate FSDP410): LBFGS flattens parameters, which fails on sharded ones of the whole shape. Take another optimizer.
    return LBFGS(list(model.parameters()))


def build(net):
    model = fully_shard(net)
    return optimizer_of(model)
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="an attribute",
        before="""\
from torch import optim
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, net):
        self.model = FSDP(net, use_orig_params=True)
        self.optimizer = optim.LBFGS(self.model.parameters())
""",
        after="""\
from torch import optim
from torch.distributed.fsdp import fully_shard


class Trainer:
    def __init__(self, net):
        self.model = fully_shard(net)
        # TODO(fsdp-migrate FSDP410): LBFGS flattens parameters, which fails on sharded ones of the whole shape. Take another optimizer.
        self.optimizer = optim.LBFGS(self.model.parameters())
""",
        outcome=Outcome.LEFT,
    ),
]

KEEP = [
    Keep(
        title="Adafactor on a plain model",
        source="""\
import torch

optimizer = torch.optim.Adafactor(model.parameters(), lr=0.1)
""",
    ),
    Keep(
        title="LBFGS on a plain model",
        source="""\
import torch

optimizer = torch.optim.LBFGS(model.parameters())
""",
    ),
    Keep(
        title="a class of the project's own",
        source="""\
from training.optim import LBFGS

optimizer = LBFGS(model.parameters())
""",
    ),
    Keep(
        title="another optimizer on an FSDP2 model",
        source="""\
import torch
from torch.distributed.fsdp import fully_shard


def build(model):
    fully_shard(model)
    return torch.optim.AdamW(model.parameters())
""",
    ),
]


def decide(site: Site, study: Study) -> Decision:
    assert site.receiver is not None
    reason = "LBFGS flattens parameters, which fails on sharded ones of the whole shape"
    if site.construct == UNSUPPORTED:
        reason = "the first step of this optimizer fails on sharded parameters"
    return study.left(
        site,
        RULE.code,
        reason,
        "take another optimizer",
        models=study.models(site.receiver, site.module).constructors,
    )
