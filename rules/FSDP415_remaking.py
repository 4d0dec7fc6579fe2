"""Make the parts of a model before it is sharded.

## What changes
Nothing by itself: a module that is put into a sharded model is left and holds the model's migration
back, and random values drawn for sharded parameters are marked.

## Why
The parameters of a module that comes into a model after `fully_shard` are not sharded, and nobody
averages their gradients over the ranks: every rank trains weights of its own, without an error.
Assigned to an attribute of FSDP1's wrapper, such a module was never used; deeper inside, its
gradients were not averaged either. In FSDP1 each rank drew values for the flat piece it held; for
parameters of the whole shape other numbers come, and on the CPU the same ones on every rank.

## What stays for you
Put the module into the model, and draw its values, before the model is sharded.

## Since torch
2.6

## References
- torch/distributed/fsdp/_fully_shard/_fully_shard.py
- torch/distributed/tensor/_random.py
"""

from fsdp_migrate.families.modules import remaking
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Finder, Keep, Rule

RULE = Rule(
    code="FSDP415",
    name="remaking",
    handles=("module of a sharded model replaced", "sharded parameter initialized"),
    finders=(Finder(190, remaking.find_replaced_modules),),
)

EXAMPLES = [
    Example(
        title="a new head",
        before="""\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def adapt(net, classes):
    model = FSDP(net)
    model.head = nn.Linear(512, classes)
    return model
""",
        after="""\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def adapt(net, classes):
    model = FSDP(net)
    # TODO(fsdp-migrate FSDP415): Nobody averages the gradients of a module that comes into a sharded model. Put it into the model before that is sharded.
    model.head = nn.Linear(512, classes)
    return model
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="a layer in a list",
        before="""\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Adapter(nn.Module):
    pass


class Trainer:
    def __init__(self, net):
        self.model = FSDP(net)
        self.model.layers[0] = Adapter()
""",
        after="""\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Adapter(nn.Module):
    pass


class Trainer:
    def __init__(self, net):
        self.model = FSDP(net)
        # TODO(fsdp-migrate FSDP415): Nobody averages the gradients of a module that comes into a sharded model. Put it into the model before that is sharded.
        self.model.layers[0] = Adapter()
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="values for sharded parameters",
        before="""\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def draw(net):
    model = FSDP(net, use_orig_params=True)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    return model
""",
        after="""\
from torch import nn
from torch.distributed.fsdp import fully_shard


def draw(net):
    model = fully_shard(net)
    for parameter in model.parameters():
        # TODO(fsdp-migrate FSDP415): The values drawn for sharded parameters are others than in FSDP1, and on the CPU the same on every rank: draw them before the model is sharded.
        nn.init.normal_(parameter, std=0.02)
    return model
""",
        outcome=Outcome.REVIEW,
    ),
]

KEEP = [
    Keep(
        title="a new head of a plain model",
        source="""\
from torch import nn

model.head = nn.Linear(512, 10)
nn.init.normal_(model.head.weight)
""",
    ),
    Keep(
        title="a new head before the model is sharded",
        source="""\
from torch import nn
from torch.distributed.fsdp import fully_shard

model.head = nn.Linear(512, 10)
fully_shard(model)
""",
    ),
    Keep(
        title="an attribute that is no module",
        source="""\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
model.step = 0
model.config.dtype = None
""",
    ),
]


def decide(site: Site, study: Study) -> Decision:
    assert site.receiver is not None
    found = study.models(site.receiver, site.module)
    if site.construct == remaking.DRAWN:
        return study.rewritten(
            site,
            RULE.code,
            "kept, with other numbers",
            models=found.constructors,
            review=(
                "the values drawn for sharded parameters are others than in FSDP1, and on the CPU "
                "the same on every rank: draw them before the model is sharded"
            ),
        )
    return study.left(
        site,
        RULE.code,
        "nobody averages the gradients of a module that comes into a sharded model",
        "put it into the model before that is sharded",
        models=found.constructors,
        quiet=True,
    )
