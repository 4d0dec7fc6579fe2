"""Let FSDP2 look into dataclasses that a model is given or returns, before torch 2.12.

## What changes
`register_dataclass(Output)` of `torch.export` follows the definition of a dataclass that `forward`
of a sharded module returns, in a tuple, list or dict or in another dataclass too. With mixed
precision and a target below torch 2.8 also of one that it takes. From 2.12 as target, nothing.

## Why
FSDP1 found tensors in dataclasses. `fully_shard` before torch 2.12 finds those in outputs with
`torch.utils._pytree.tree_flatten`, to which a dataclass is a leaf unless it is registered. Without
a hook on any output nothing is gathered for backward and no gradient is reduced: units that free
their parameters fail, but a root, or a unit that keeps them (`SHARD_GRAD_OP`), goes on, and the
optimizer trains nothing. Before torch 2.8 inputs in dataclasses are not cast to `param_dtype`
either. Registered, a dataclass is harmless on later releases.

## What stays for you
FSDP2 makes registered dataclasses again from their fields. Those that this could change are left,
and the migration of their models held back: with `__post_init__`, an `__init__` of their own or
fields that the constructor does not take, defined in a function or in a file with nothing else to
migrate, changed by the `forward` that is given them, or in projects that use pytrees themselves.
Return a tuple or a dict there, or raise the target to torch 2.12. Dataclasses that no annotation
and no constructor call in the project names are not seen. torch 2.7 itself warns of a deprecated
function when a dataclass is registered.

## Since torch
2.6

## References
- https://docs.pytorch.org/docs/stable/export.html#torch.export.register_dataclass
- torch/distributed/fsdp/_fully_shard/_fsdp_state.py (`_register_pre_backward_hook`)
"""

from collections.abc import Iterator

from fsdp_migrate.families.modules import dataclass_nodes
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Finder, Keep, Rule


def _dataclasses(study: Study) -> Iterator[Site]:
    return (found.site for found in dataclass_nodes.findings(study))


RULE = Rule(
    code="FSDP421",
    name="dataclasses",
    handles=("dataclass of a model",),
    finders=(Finder(250, in_project=_dataclasses),),
)

EXAMPLES = [
    Example(
        title="a loss in a dataclass",
        before="""\
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor
    name: str = ""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 2)

    def forward(self, x, y):
        logits = self.head(x)
        return Output(nn.functional.cross_entropy(logits, y), logits)


def train(batches):
    model = FSDP(Net())
    for x, y in batches:
        model(x, y).loss.backward()
""",
        after="""\
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.export import register_dataclass


@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor
    name: str = ""


register_dataclass(Output)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 2)

    def forward(self, x, y):
        logits = self.head(x)
        return Output(nn.functional.cross_entropy(logits, y), logits)


def train(batches):
    model = fully_shard(Net())
    for x, y in batches:
        model(x, y).loss.backward()
""",
    ),
    Example(
        title="in a tuple and through another model",
        before="""\
import dataclasses
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


@dataclasses.dataclass(frozen=True)
class Features:
    layers: list[torch.Tensor]


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        features = self.features(x)
        return features.layers[-1], features

    def features(self, x):
        return Features([x, self.layer(x)])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()

    def forward(self, x):
        return self.encoder(x)


model = FSDP(Model(), use_orig_params=True)
""",
        after="""\
import dataclasses
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.export import register_dataclass


@dataclasses.dataclass(frozen=True)
class Features:
    layers: list[torch.Tensor]


register_dataclass(Features)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        features = self.features(x)
        return features.layers[-1], features

    def features(self, x):
        return Features([x, self.layer(x)])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()

    def forward(self, x):
        return self.encoder(x)


model = fully_shard(Model())
""",
    ),
    Example(
        title="inputs, in mixed precision",
        before="""\
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


@dataclass
class Batch:
    x: torch.Tensor
    ids: torch.Tensor


@dataclass
class Settings:
    depth: int = 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 2)

    def forward(self, batch: Batch, settings: Settings):
        return self.head(batch.x)


def build():
    return FSDP(Net(), mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
""",
        after="""\
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.export import register_dataclass


@dataclass
class Batch:
    x: torch.Tensor
    ids: torch.Tensor


register_dataclass(Batch)


@dataclass
class Settings:
    depth: int = 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 2)

    def forward(self, batch: Batch, settings: Settings):
        return self.head(batch.x)


def build():
    return fully_shard(Net(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
""",
    ),
    Example(
        title="a dataclass that cannot be made again",
        before="""\
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


@dataclass
class Output:
    loss: torch.Tensor

    def __post_init__(self):
        self.loss = self.loss / 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 2)

    def forward(self, x) -> Output:
        return Output(loss=self.head(x).mean())


model = FSDP(Net())
""",
        after="""\
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


# TODO(fsdp-migrate FSDP421): fully_shard before torch 2.12 finds no outputs in Output, so that nothing may train, and it is not registered as a pytree node here: Output has __post_init__(), which would run again. Return a tuple or a dict, or register it with torch.export.register_dataclass once it can be made again from its fields, or raise the target to torch 2.12.
@dataclass
class Output:
    loss: torch.Tensor

    def __post_init__(self):
        self.loss = self.loss / 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 2)

    def forward(self, x) -> Output:
        return Output(loss=self.head(x).mean())


model = FSDP(Net())
""",
        outcome=Outcome.LEFT,
    ),
]

KEEP = [
    Keep(
        title="a model that is not sharded",
        source="""\
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Output:
    loss: torch.Tensor


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return Output(self.head(x).mean())


model = Net()
""",
    ),
    Keep(
        title="FSDP2, with a dataclass that is registered",
        source="""\
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


@dataclass
class Output:
    loss: torch.Tensor


torch.export.register_dataclass(Output)


class Net(nn.Module):
    def forward(self, x) -> Output:
        return Output(x.mean())


model = fully_shard(Net())
""",
    ),
    Keep(
        title="DDP finds tensors in dataclasses",
        source="""\
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Output:
    loss: torch.Tensor


class Net(nn.Module):
    def forward(self, x) -> Output:
        return Output(x.mean())


model = DDP(Net())
""",
    ),
    Keep(
        title="a dataclass for settings",
        source="""\
from dataclasses import dataclass

from torch.distributed.fsdp import fully_shard


@dataclass
class Settings:
    width: int = 8


def build(net, settings: Settings):
    return fully_shard(net(settings.width))
""",
    ),
]

BY_HAND = (
    "return a tuple or a dict, or register it with torch.export.register_dataclass once it can be "
    "made again from its fields, or raise the target to torch 2.12"
)


def decide(site: Site, study: Study) -> Decision:
    found = [d for d in dataclass_nodes.findings(study) if d.site is site]
    models = found[0].constructors(study)
    name = found[0].cls.node.name
    reason = dataclass_nodes.problem(found[0], study)
    if reason:
        blind = (
            f"fully_shard before torch {dataclass_nodes.OUTPUTS} finds no outputs in {name}, so "
            + (
                "that nothing may train"
                if found[0].of_unit
                else "that the root only trains if outputs of a unit require gradients"
            )
            if found[0].is_output
            else f"fully_shard before torch {dataclass_nodes.INPUTS} casts no inputs in {name}"
        )
        return study.left(
            site,
            RULE.code,
            f"{blind}, and it is not registered as a pytree node here: {reason}",
            BY_HAND,
            models=models,
            quiet=found[0].of_unit,
            final=True,
        )
    module, node = found[0].cls.module, found[0].cls.node
    proposal = study.proposal()
    register = proposal.name(module, "torch.export", "register_dataclass", node)
    proposal.insert_after(module, node, code("{r}({c})", r=register, c=name))
    message = f"{name} is registered as a pytree node, which fully_shard looks into"
    return study.rewritten(site, RULE.code, message, proposal, models=models)
