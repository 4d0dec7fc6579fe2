"""Recognise sharded models as `FSDPModule`.

## What changes
`isinstance(m, FullyShardedDataParallel)` becomes `isinstance(m, FSDPModule)`; annotations and other
types (aliases, `cast`, `TypeVar`, arguments of generic base classes) change alike, and tuples and
unions of classes that are only used for `isinstance`. So does
`hasattr(m, "clip_grad_norm_")` (or `"no_sync"`), where it tells FSDP1 models. Loops that take
wrappers off (`while isinstance(m, (FSDP, DDP)): m = m.module`) go on for the other wrappers only.
Where `isinstance(m, FSDPModule)` is asked beside it, the branch for FSDP1 goes; if that is a function
which answers with the version of FSDP, so does what is done for FSDP1's version.

## Why
After `fully_shard`, a model's class is a subclass of its own class and of `FSDPModule`. The old
test is false, so code quietly takes the other branch. Nothing is wrapped any more: a loop that takes
off what is an `FSDPModule` would not end.

## What stays for you
Checks in projects that wrap their models elsewhere.

## Since torch
2.6

## References
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.modules import classes
from fsdp_migrate.fsdp1 import references, unwrapping
from fsdp_migrate.fsdp1.api import FSDP, PACKAGE
from fsdp_migrate.planning import branches, string_references
from fsdp_migrate.planning.branches import VERSION, Branch
from fsdp_migrate.planning.context import Study, sentences
from fsdp_migrate.planning.edits import Proposal, code, join
from fsdp_migrate.planning.model import Constructor, Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Finder, Keep, Rule
from fsdp_migrate.syntax import string_annotations, type_expressions
from fsdp_migrate.syntax.scopes import FUNCTIONS


def _attribute_checks(study: Study, module: Module) -> Iterator[Site]:
    return references.attribute_checks(study.tracer, module)


RULE = Rule(
    code="FSDP404",
    name="isinstance",
    handles=(
        "isinstance(FullyShardedDataParallel)",
        "annotation(FullyShardedDataParallel)",
        "compared(FullyShardedDataParallel)",
        "listed(FullyShardedDataParallel)",
        "hasattr(FullyShardedDataParallel)",
        "version",
        "annotation(MixedPrecision)",
        "annotation(CPUOffload)",
        "quoted annotation",
    ),
    finders=(Finder(110, _attribute_checks),),
)

EXAMPLES = [
    Example(
        title="a check",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
if isinstance(model, FSDP):
    print("sharded")
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, fully_shard

model = fully_shard(model)
if isinstance(model, FSDPModule):
    print("sharded")
""",
    ),
    Example(
        title="a check among others",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

model = FSDP(model)
wrapped = isinstance(model, (DDP, FSDP))
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

model = fully_shard(model)
wrapped = isinstance(model, (DDP, FSDPModule))
""",
    ),
    Example(
        title="annotations",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def shard(model) -> FSDP:
    return FSDP(model)


def step(model: FSDP, precision: MixedPrecision | None) -> None:
    model(precision)
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard


def shard(model) -> FSDPModule:
    return fully_shard(model)


def step(model: FSDPModule, precision: MixedPrecisionPolicy | None) -> None:
    model(precision)
""",
    ),
    Example(
        title="a function that answers with the version of FSDP",
        before="""\
import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP


def fsdp_version(model):
    if isinstance(model, FSDP):
        return 1
    elif FSDPModule is not None and isinstance(model, FSDPModule):
        return 2
    else:
        return 0


def offload(model):
    if fsdp_version(model) == 2:
        model.cpu()
        return
    assert isinstance(model, FSDP)
    for handle in model._all_handles:
        handle.flat_param_to(torch.device("cpu"))


def main(net, world_size):
    model = FSDP(net)
    if world_size > 1 and fsdp_version(model) == 1:
        model._handle.reshard(True)
    if fsdp_version(model) == 1:
        norm = model.clip_grad_norm_(1.0)
    else:
        norm = clip_sharded(model, 1.0)
    offload(model)
    return norm
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, fully_shard


def fsdp_version(model):
    # TODO(fsdp-migrate FSDP404): Models that were FSDP1 take the branch for FSDP2 now: see that it does all they need.
    if FSDPModule is not None and isinstance(model, FSDPModule):
        return 2
    else:
        return 0


def offload(model):
    if fsdp_version(model) == 2:
        model.cpu()
        return
    assert isinstance(model, FSDPModule)


def main(net, world_size):
    model = fully_shard(net)
    norm = clip_sharded(model, 1.0)
    offload(model)
    return norm
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="a branch for FSDP1 beside one for FSDP2",
        before="""\
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP


def shard(net):
    return FSDP(net)


def version(model):
    if isinstance(model, FSDP):
        return 1
    elif isinstance(model, FSDPModule):
        return 2
    return 0


def clip(model, limit):
    # FSDP2 first
    if isinstance(model, FSDPModule):
        norm = clip_sharded(model.parameters(), limit)
    elif isinstance(model, FSDP):
        norm = model.clip_grad_norm_(limit)
    else:
        norm = clip_plain(model.parameters(), limit)
    return norm
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, fully_shard


def shard(net):
    return fully_shard(net)


def version(model):
    # TODO(fsdp-migrate FSDP404): Models that were FSDP1 take the branch for FSDP2 now: see that it does all they need.
    if isinstance(model, FSDPModule):
        return 2
    return 0


def clip(model, limit):
    # FSDP2 first
    # TODO(fsdp-migrate FSDP404): Models that were FSDP1 take the branch for FSDP2 now: see that it does all they need.
    if isinstance(model, FSDPModule):
        norm = clip_sharded(model.parameters(), limit)
    else:
        norm = clip_plain(model.parameters(), limit)
    return norm
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="an if for FSDP1 and another for FSDP2",
        before="""\
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP


def shard(net):
    return FSDP(net)


def facade(model):
    if isinstance(model, FSDP):
        return Facade1(model)

    if isinstance(model, FSDPModule):
        return Facade2(model)

    raise TypeError(model)


def load(model, state):
    if isinstance(model, FSDP):
        load_fsdp1(model, state)
    if isinstance(model, FSDPModule):
        load_fsdp2(model, state)
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, fully_shard


def shard(net):
    return fully_shard(net)


def facade(model):

    # TODO(fsdp-migrate FSDP404): Models that were FSDP1 take the branch for FSDP2 now: see that it does all they need.
    if isinstance(model, FSDPModule):
        return Facade2(model)

    raise TypeError(model)


def load(model, state):
    # TODO(fsdp-migrate FSDP404): Models that were FSDP1 take the branch for FSDP2 now: see that it does all they need.
    if isinstance(model, FSDPModule):
        load_fsdp2(model, state)
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="a branch for FSDP2 and others",
        before="""\
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP


def norm(net, parts, limit):
    model = FSDP(net) if parts is None else parts
    if isinstance(model, FSDP):
        return model.clip_grad_norm_(limit)
    elif isinstance(model, FSDPModule) or isinstance(model, list):
        return clip_sharded(model, limit)
    return clip_plain(model, limit)


def name(net):
    if isinstance(net, FSDP):
        kind = "wrapped"
    elif isinstance(net, (FSDPModule, list)):
        kind = "sharded"
    else:
        kind = "whole"
    return kind
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, fully_shard


def norm(net, parts, limit):
    model = fully_shard(net) if parts is None else parts
    # TODO(fsdp-migrate FSDP404): Models that were FSDP1 take the branch for FSDP2 now: see that it does all they need.
    if isinstance(model, FSDPModule) or isinstance(model, list):
        return clip_sharded(model, limit)
    return clip_plain(model, limit)


def name(net):
    # TODO(fsdp-migrate FSDP404): Models that were FSDP1 take the branch for FSDP2 now: see that it does all they need.
    if isinstance(net, (FSDPModule, list)):
        kind = "sharded"
    else:
        kind = "whole"
    return kind
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="the class itself",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def is_wrapped(net):
    model = FSDP(net)
    return type(model) == FSDP, type(net) is not FSDP
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, fully_shard


def is_wrapped(net):
    model = fully_shard(net)
    return isinstance(model, FSDPModule), not isinstance(net, FSDPModule)
""",
    ),
    Example(
        title="a model that has FSDP's methods",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def clip(net, optimizer):
    model = FSDP(net)
    if hasattr(model, "clip_grad_norm_"):
        model.clip_grad_norm_(1.0)
    elif hasattr(optimizer, "clip_grad_norm_"):
        optimizer.clip_grad_norm_(1.0)
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, fully_shard
import torch.nn.utils as nn_utils


def clip(net, optimizer):
    model = fully_shard(net)
    if isinstance(model, FSDPModule):
        nn_utils.clip_grad_norm_(model.parameters(), 1.0)
    elif hasattr(optimizer, "clip_grad_norm_"):
        optimizer.clip_grad_norm_(1.0)
""",
    ),
    Example(
        title="a loop that takes wrappers off",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def unwrap(model):
    while isinstance(model, (FSDP, DDP)):
        model = model.module
    return model


def build(net):
    model = FSDP(net)
    return model, unwrap(model)
""",
        after="""\
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP


def unwrap(model):
    while isinstance(model, DDP):
        model = model.module
    return model


def build(net):
    model = fully_shard(net)
    return model, unwrap(model)
""",
    ),
    Example(
        title="a loop that takes FSDP's wrapper off",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def inner(net):
    model = FSDP(net)
    while isinstance(model, FSDP):
        model = model.module
    return model
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def inner(net):
    model = fully_shard(net)
    return model
""",
    ),
    Example(
        title="wrappers of models that are not known are taken off",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def unwrap(model):
    return model.module if isinstance(model, (FSDP, DDP)) else model


def build(net):
    return FSDP(net)
""",
        after="""\
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP


def unwrap(model):
    return model.module if isinstance(model, DDP) else model


def build(net):
    return fully_shard(net)
""",
    ),
    Example(
        title="a loop that takes more than wrappers off",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def unwrap(model):
    while isinstance(model, (FSDP, DDP)):
        print(type(model))
        model = model.module
    return model


def build(net):
    return unwrap(FSDP(net))
""",
        after="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def unwrap(model):
    # TODO(fsdp-migrate FSDP404): An FSDP2 model has no inner module, and a loop that takes wrappers off would not end. Take off the other wrappers alone.
    while isinstance(model, (FSDP, DDP)):
        print(type(model))
        model = model.module
    return model


def build(net):
    return unwrap(FSDP(net))
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="a tuple of wrappers",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

WRAPPERS = (FSDP, DDP)


def is_wrapped(model, classes=(FSDP,)):
    return isinstance(model, WRAPPERS) or isinstance(model, classes)


def build(net):
    return FSDP(net)
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

WRAPPERS = (FSDPModule, DDP)


def is_wrapped(model, classes=(FSDPModule,)):
    return isinstance(model, WRAPPERS) or isinstance(model, classes)


def build(net):
    return fully_shard(net)
""",
    ),
    Example(
        title="a tuple of wrappers that are taken off",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def unwrap(model, wrappers=(FSDP, DDP)):
    while isinstance(model, wrappers):
        model = model.module
    return model


def build(net):
    model = FSDP(net)
    return model, unwrap(model)
""",
        after="""\
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP


def unwrap(model, wrappers=(DDP,)):
    while isinstance(model, wrappers):
        model = model.module
    return model


def build(net):
    model = fully_shard(net)
    return model, unwrap(model)
""",
    ),
    Example(
        title="a tuple that grows by a wrapper that is taken off",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def unwrap(model, sharded):
    wrappers = (DDP,)
    if sharded:
        wrappers += (FSDP,)
    while isinstance(model, wrappers):
        model = model.module
    return model


def build(net):
    model = FSDP(net)
    return model, unwrap(model, True)
""",
        after="""\
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP


def unwrap(model, sharded):
    wrappers = (DDP,)
    if sharded:
        pass
    while isinstance(model, wrappers):
        model = model.module
    return model


def build(net):
    model = fully_shard(net)
    return model, unwrap(model, True)
""",
    ),
    Example(
        title="a tuple that grows",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def is_wrapped(model, sharded):
    options = (DDP,)
    if sharded:
        options += (FSDP,)
    return isinstance(model, options)


def build(net):
    return FSDP(net)
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP


def is_wrapped(model, sharded):
    options = (DDP,)
    if sharded:
        options += (FSDPModule,)
    return isinstance(model, options)


def build(net):
    return fully_shard(net)
""",
    ),
    Example(
        title="annotations in quotes",
        before="""\
from typing import Optional, cast

import torch.distributed.fsdp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net, precision: "torch.distributed.fsdp.MixedPrecision") -> "FSDP":
    return cast("FSDP", FSDP(net))


def save(model: "Optional[FSDP]", path): ...
""",
        after="""\
from typing import Optional, cast

import torch.distributed.fsdp
from torch.distributed.fsdp import FSDPModule, fully_shard


def build(net, precision: "torch.distributed.fsdp.MixedPrecisionPolicy") -> "FSDPModule":
    return cast("FSDPModule", fully_shard(net))


def save(model: "Optional[FSDPModule]", path): ...
""",
    ),
    Example(
        title="types outside of annotations",
        before="""\
from typing import Annotated, Generic, NewType, Optional, TypeAlias, TypeVar, Union, cast

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.nn.parallel import DistributedDataParallel as DDP

Wrapped = Union[FSDP, DDP]
Precision = Optional[MixedPrecision]
Models = list[FSDP]
Either = FSDP | DDP
Noted: TypeAlias = Annotated[FSDP, "sharded"]
Student = NewType("Student", FSDP)
M = TypeVar("M", FSDP, DDP)
S = TypeVar("S", bound=Optional[FSDP])


class Trainer(Generic[M]): ...


class ShardedTrainer(Trainer[FSDP]): ...


def build(net, precision: Precision = None) -> Wrapped:
    return cast(FSDP, FSDP(net))
""",
        after="""\
from typing import Annotated, Generic, NewType, Optional, TypeAlias, TypeVar, Union, cast

from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

Wrapped = Union[FSDPModule, DDP]
Precision = Optional[MixedPrecisionPolicy]
Models = list[FSDPModule]
Either = FSDPModule | DDP
Noted: TypeAlias = Annotated[FSDPModule, "sharded"]
Student = NewType("Student", FSDPModule)
M = TypeVar("M", FSDPModule, DDP)
S = TypeVar("S", bound=Optional[FSDPModule])


class Trainer(Generic[M]): ...


class ShardedTrainer(Trainer[FSDPModule]): ...


def build(net, precision: Precision = None) -> Wrapped:
    return cast(FSDPModule, fully_shard(net))
""",
    ),
    Example(
        title="a union of classes that models are told apart by",
        before="""\
from typing import Union

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

Wrapped = Union[FSDP, DDP]


def build(net) -> Wrapped:
    return FSDP(net)


def is_wrapped(model: Wrapped) -> bool:
    return isinstance(model, Wrapped)
""",
        after="""\
from typing import Union

from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

Wrapped = Union[FSDPModule, DDP]


def build(net) -> Wrapped:
    return fully_shard(net)


def is_wrapped(model: Wrapped) -> bool:
    return isinstance(model, Wrapped)
""",
    ),
    Example(
        title="an annotation in quotes of what FSDP2 has not",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def build(net, strategy: "ShardingStrategy"):
    return FSDP(net)
""",
        after="""\
from torch.distributed.fsdp import ShardingStrategy, fully_shard


# TODO(fsdp-migrate FSDP404): FSDP2 has no ShardingStrategy. Name what the annotated code takes now.
def build(net, strategy: "ShardingStrategy"):
    return fully_shard(net)
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="wrappers that are passed over",
        before="""\
from torch.nn import Sequential
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    model = FSDP(net)
    apply_activation_checkpointing(
        model, check_fn=lambda m: hasattr(m, "heavy") and not isinstance(m, FSDP)
    )
    for module in model.modules():
        if isinstance(module, FSDP):
            continue
        module.seen = True
        if not isinstance(module, (FSDP, Sequential)):
            module.single = True
    return model
""",
        after="""\
from torch.nn import Sequential
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import fully_shard


def build(net):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP117): Activation checkpointing goes around the sharded modules here, and before torch 2.11 a module that runs twice before its backward can fail so; apply it before fully_shard.
    apply_activation_checkpointing(
        model, check_fn=lambda m: hasattr(m, "heavy")
    )
    for module in model.modules():
        module.seen = True
        if not isinstance(module, Sequential):
            module.single = True
    return model
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="a walk that does not go into units",
        before="""\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def units(module, found):
    for child in module.children():
        if not isinstance(child, (FSDP, nn.Embedding)):
            units(child, found)
        else:
            found.append(child)


def layers(module):
    for child in module.children():
        if isinstance(child, FSDP):
            continue
        yield child
        yield from layers(child)


def every(module):
    for child in module.children():
        yield from every(child)
        if isinstance(child, FSDP):
            continue
        yield child


def build(net):
    net.block = FSDP(net.block)
    model = FSDP(net)
    found = []
    units(model, found)
    return found, list(layers(model)), list(every(model))
""",
        after="""\
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard


def units(module, found):
    for child in module.children():
        if not isinstance(child, (FSDPModule, nn.Embedding)):
            units(child, found)
        else:
            found.append(child)


def layers(module):
    for child in module.children():
        if isinstance(child, FSDPModule):
            continue
        yield child
        yield from layers(child)


def every(module):
    for child in module.children():
        yield from every(child)
        yield child


def build(net):
    net.block = fully_shard(net.block)
    model = fully_shard(net)
    found = []
    units(model, found)
    return found, list(layers(model)), list(every(model))
""",
    ),
]

KEEP = [
    Keep(
        title="a walk that does not go into layers",
        source="""\
from torch import nn


def units(module, found):
    for child in module.children():
        if not isinstance(child, (nn.Linear, nn.Embedding)):
            units(child, found)
        else:
            found.append(child)
""",
    ),
    Keep(
        title="FSDP2's modules that are passed over",
        source="""\
from torch.distributed.fsdp import FSDPModule, fully_shard


def build(net):
    model = fully_shard(net)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            continue
        module.seen = True
    return model
""",
    ),
    Keep(
        title="a tuple that grows by another class",
        source="""\
from torch.distributed.fsdp import FSDPModule as FSDP
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP


def is_wrapped(model, sharded):
    wrappers = (DDP,)
    if sharded:
        wrappers += (FSDP,)
    return isinstance(model, wrappers)


def build(net):
    return fully_shard(net)
""",
    ),
    Keep(
        title="other wrappers are taken off",
        source="""\
from torch.nn import DataParallel
from torch.nn.parallel import DistributedDataParallel as DDP

WRAPPERS = (DDP, DataParallel)


def unwrap(model):
    while isinstance(model, WRAPPERS):
        model = model.module
    return model
""",
    ),
    Keep(
        title="a loop over FSDP2's models",
        source="""\
from torch.distributed.fsdp import FSDPModule


def outermost(model, parents):
    while isinstance(parents.get(model), FSDPModule):
        model = parents[model]
    return model
""",
    ),
    Keep(
        title="wrappers in a tuple, none of them FSDP's",
        source="""\
from torch.nn.parallel import DistributedDataParallel as DDP


def unwrap(model, wrappers=(DDP,)):
    return model.module if isinstance(model, wrappers) else model
""",
    ),
    Keep(
        title="one wrapper is taken off",
        source="""\
from torch.nn.parallel import DistributedDataParallel as DDP


def unwrap(model):
    if isinstance(model, DDP):
        model = model.module
    return model
""",
    ),
    Keep(
        title="a class of the project's own of that name",
        source="""\
from wrappers import FSDP, DDP


def unwrap(model):
    while isinstance(model, (FSDP, DDP)):
        model = model.module
    return model
""",
    ),
    Keep(
        title="wrappers by name",
        source="""\
def unwrap(model):
    while hasattr(model, "module"):
        model = model.module
    return model
""",
    ),
    Keep(
        title="a union of classes whose models lose a wrapper",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

Wrapped = FSDP | DDP


def unwrap(model):
    while isinstance(model, Wrapped):
        model = model.module
    return model


def build(net):
    return FSDP(net)
""",
        left=True,
    ),
    Keep(
        title="what FSDP is looked up by",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

SAVERS = {FSDP: print}
saver = SAVERS[FSDP]


def save(model):
    saver(model)
""",
        left=True,
    ),
    Keep(
        title="a tuple of classes to choose from",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

WRAPPERS = (FSDP, DDP)


def wrap(net, index):
    return WRAPPERS[index](net)
""",
        left=True,
    ),
    Keep(
        title="a method of something else",
        source="""\
if hasattr(optimizer, "clip_grad_norm_"):
    optimizer.clip_grad_norm_(1.0)
""",
    ),
    Keep(
        title="a project that wraps its models elsewhere",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def is_sharded(model):
    return isinstance(model, FSDP)
""",
        left=True,
    ),
    Keep(
        title="a branch for some FSDP1 models before one for FSDP2",
        source="""\
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP


def norm(net, limit, whole):
    model = FSDP(net)
    if whole and isinstance(model, FSDP):
        return clip_whole(model, limit)
    elif isinstance(model, FSDPModule):
        return clip_sharded(model, limit)
    return None
""",
        left=True,
    ),
    Keep(
        title="an answer for FSDP1 before one for FSDP2, of what it holds",
        source="""\
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP


def build(net):
    return FSDP(net)


def version(model):
    if isinstance(model, FSDP):
        return 1
    model = getattr(model, "inner", model)
    if isinstance(model, FSDPModule):
        return 2
    return 0
""",
        left=True,
    ),
    Keep(
        title="an if for FSDP2 beside one for others",
        source="""\
from torch.distributed.fsdp import FSDPModule


def facade(model):
    if isinstance(model, Other):
        return Facade1(model)
    if isinstance(model, FSDPModule):
        return Facade2(model)
    raise TypeError(model)
""",
    ),
    Keep(
        title="FSDP2's class",
        source="""\
from torch.distributed.fsdp import FSDPModule

sharded = isinstance(model, FSDPModule)
""",
    ),
    Keep(
        title="another wrapper",
        source="""\
from torch.nn.parallel import DistributedDataParallel

wrapped = isinstance(model, DistributedDataParallel)
""",
    ),
    Keep(
        title="versions of something else",
        source="""\
from torch.distributed.fsdp import FSDPModule


def attention_version(model):
    if hasattr(model, "rotary"):
        return 1
    elif isinstance(model, FSDPModule):
        return 2
    return 0


def prepare(model):
    if attention_version(model) == 1:
        model.rotary.reset()
""",
    ),
    Keep(
        title="a branch for FSDP2 alone",
        source="""\
from torch.distributed.fsdp import FSDPModule


def version(model):
    if isinstance(model, FSDPModule):
        return 2
    return 0
""",
    ),
    Keep(
        title="classes in general",
        source="""\
def same(first, second):
    return type(first) == type(second)
""",
    ),
    Keep(
        title="quotes that are no annotations",
        source="""\
from typing import Annotated, Literal

from torch.distributed.fsdp import FSDPModule, fully_shard

FSDP = FSDPModule


def build(net, kind: Literal["FSDP"] = "FSDP", note: Annotated[str, "FSDP"] = "FSDP") -> "FSDP":
    return fully_shard(net)
""",
    ),
    Keep(
        title="an annotation in quotes without a model",
        source="""\
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(model: "FSDP", path): ...
""",
        left=True,
    ),
]

NEW_NAMES = {FSDP: "FSDPModule", "MixedPrecision": "MixedPrecisionPolicy"}
TYPES = {
    **{old: (PACKAGE, new) for old, new in NEW_NAMES.items()},
    "CPUOffload": (PACKAGE, "OffloadPolicy"),
    "ShardedGradScaler": ("torch.amp", "GradScaler"),
}


def decide(site: Site, study: Study) -> Decision:
    kind, _, rest = site.construct.partition("(")
    if kind == string_references.QUOTED:
        return _quoted(site, study)
    if kind == VERSION:
        return _version(site, study)
    if kind == "compared":
        return _compared(site, study)
    if kind == "hasattr":
        return _has_method(site, study)
    old = rest.rstrip(")")
    models = frozenset(study.constructors.values())
    if kind == "isinstance" and isinstance(site.node, ast.Call):
        models = study.models_of_static(site.node.args[0], site.module).constructors
    if not models:
        return study.left(
            site,
            RULE.code,
            study.no_models,
            "give the path that wraps the model as well",
        )
    branch = next((b for b in study.branches if b.asks is site.node), None)
    if branch is not None:
        return _branch(branch, site, study)
    if kind == "isinstance" and old == FSDP and branches.comes_first(site, study.project):
        return study.left(
            site,
            RULE.code,
            "what is for FSDP2 models comes after this, and would not be reached if they are asked "
            "for here",
            "ask for FSDPModule first, by itself, and run again",
            models=models,
            quiet=True,
        )
    if kind == "isinstance" and old == FSDP:
        inner = _wrappers_passed_over(site, models, study)
        if inner is not None:
            return inner
        taken_off = _taken_off(site, models, study)
        if taken_off is not None:
            return taken_off
        if unwrapping.is_condition_of_loop(site.node, site.module):
            return study.left(
                site,
                RULE.code,
                "an FSDP2 model has no inner module, and a loop that takes wrappers off would not end",
                "take off the other wrappers alone",
                models=models,
                quiet=True,
            )
    if kind == "annotation" and _is_checked_elsewhere(site, study):
        return study.left(
            site,
            RULE.code,
            "models are told apart by this type in other files, and an FSDP2 model has no inner "
            "module",
            "use FSDPModule in place of FSDP where nothing is taken off the models",
            models=models,
            quiet=True,
        )
    if kind == "listed":
        settled = _listed(site, models, study)
        if settled is not None:
            return settled
    new = NEW_NAMES.get(old, "OffloadPolicy")
    proposal = study.proposal()
    name = proposal.name(site.module, PACKAGE, new, site.reference)
    assert isinstance(site.reference, ast.expr)
    proposal.replace(site.module, site.reference, code("{n}", n=name))
    return study.rewritten(site, RULE.code, new, proposal, models=models)


def _stops_there(holder: ast.AST, module: Module) -> bool:
    """Whether a function that goes down the tree by itself does not go into what was wrapped."""
    table = module.table
    around = list(table.ancestors(holder))
    function = next((p for p in around if isinstance(p, FUNCTIONS)), None)
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    deeper = [
        call
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        and (getattr(call.func, "id", "") or getattr(call.func, "attr", "")) == function.name
    ]
    if isinstance(holder, ast.If):  # if isinstance(m, FSDP): continue
        loop = table.parents[holder]
        later = {n for n in ast.walk(loop) if isinstance(n, ast.Call) and n.lineno > holder.lineno}
        return bool(deeper) and later.issuperset(deeper)
    branch = next((p for p in around if isinstance(p, (ast.stmt, ast.comprehension))), None)
    if not isinstance(branch, ast.If):
        return False
    inside = {node for statement in branch.body for node in ast.walk(statement)}
    return bool(deeper) and inside.issuperset(deeper)


def _wrappers_passed_over(
    site: Site, models: frozenset[Constructor], study: Study
) -> Decision | None:
    """``not isinstance(m, FSDP)`` of every module of a model: in FSDP1 the module in a wrapper came
    by as well, and was meant. What only passes over wrappers goes."""
    check, table = site.node, site.module.table
    assert isinstance(check, ast.Call)
    holder = table.parents[check]
    negated = isinstance(holder, ast.UnaryOp) and isinstance(holder.op, ast.Not)
    passes = (
        isinstance(holder, ast.If)
        and holder.test is check
        and not holder.orelse
        and isinstance(holder.body[0], ast.Continue)
    )
    asked = check.args[1]
    named = asked.elts if isinstance(asked, ast.Tuple) else [asked]
    if site.reference not in named:
        return None
    others = [e for e in named if e is not site.reference]
    if not (negated or passes):
        return None
    if not classes.is_visited(check.args[0], study, site.module):
        return None
    if _stops_there(holder, site.module):
        return None
    proposal = study.proposal()
    message = "gone: no module comes by as a wrapper and once more inside of it"
    around = table.parents[holder]
    if others:
        _ask_for(others, check, site, proposal)
    elif passes:
        assert isinstance(holder, ast.If)
        proposal.delete(site.module, holder)
        study.gone.add(holder)
    elif isinstance(around, ast.BoolOp) and isinstance(around.op, ast.And):
        rest = [code("{v}", v=value) for value in around.values if value is not holder]
        proposal.replace(site.module, around, join(" and ", rest))
    else:
        return study.left(
            site,
            RULE.code,
            "this is about the modules inside of FSDP1's wrappers, and there are no wrappers now",
            "drop the test where it only kept wrappers out",
            models=models,
            quiet=True,
        )
    return study.rewritten(site, RULE.code, message, proposal, models=models)


def _ask_for(
    classes_left: Sequence[ast.expr], check: ast.Call, site: Site, proposal: Proposal
) -> None:
    """Ask an ``isinstance`` for some of its classes, without brackets around a single one."""
    asked = join(", ", [code("{o}", o=each) for each in classes_left])
    asked = asked if len(classes_left) == 1 else code("({a})", a=asked)
    proposal.replace(site.module, check, code("isinstance({m}, {a})", m=check.args[0], a=asked))


def _taken_off(site: Site, models: frozenset[Constructor], study: Study) -> Decision | None:
    """``while isinstance(m, (FSDP, DDP)): m = m.module``: only the others are taken off."""
    check = site.node
    assert isinstance(check, ast.expr)
    holder = unwrapping.around(check, site.module)
    if holder is None:
        return None
    assert isinstance(check, ast.Call)
    others = unwrapping.others(check, site.reference)
    if not isinstance(holder, ast.While) and (
        not others or study.traced(check.args[0], site.module)
    ):
        return None
    proposal = study.proposal()
    if others:
        _ask_for(others, check, site, proposal)
        message = "kept for the other wrappers: an FSDP2 model has no inner module"
    else:
        assert isinstance(holder, ast.While)
        proposal.delete(site.module, holder)
        study.gone.add(holder)
        message = "an FSDP2 model has no inner module"
    return study.rewritten(site, RULE.code, message, proposal, models=models)


def _listed(site: Site, models: frozenset[Constructor], study: Study) -> Decision | None:
    """A class in a tuple for ``isinstance`` that FSDPModule cannot simply take the place of."""
    assert isinstance(site.reference, ast.expr)
    checks = unwrapping.listed_for(site.reference, site.module)
    takes_off = [check for check in checks if unwrapping.takes_off(check, site.module)]
    holder = unwrapping.classes_around(site.reference, site.module)
    is_tuple = isinstance(holder, ast.Tuple)
    elsewhere = _is_imported(site, study) if is_tuple else _is_checked_elsewhere(site, study)
    if not takes_off and not elsewhere:
        return None
    classes = holder.elts if isinstance(holder, ast.Tuple) else []
    others = [e for e in classes if e is not site.reference]
    statement = site.statement
    if (
        not others
        and takes_off == checks
        and not elsewhere
        and isinstance(statement, ast.AugAssign)
    ):
        proposal = study.proposal()
        proposal.delete(site.module, statement)
        message = "kept for the other wrappers: an FSDP2 model has no inner module"
        return study.rewritten(site, RULE.code, message, proposal, models=models)
    if elsewhere or takes_off != checks or not others:
        why = "used in other files" if elsewhere else "also those of wrappers that are taken off"
        return study.left(
            site,
            RULE.code,
            f"these classes are {why}, and an FSDP2 model has no inner module",
            "use FSDPModule in place of FSDP where models are told apart by them",
            models=models,
            quiet=True,
        )
    assert holder is not None
    proposal = study.proposal()
    listed = join(", ", [code("{o}", o=other) for other in others])
    comma = "," if len(others) == 1 else ""
    proposal.replace(site.module, holder, code("({l}{c})", l=listed, c=comma))
    message = "kept for the other wrappers: an FSDP2 model has no inner module"
    return study.rewritten(site, RULE.code, message, proposal, models=models)


def _is_checked_elsewhere(site: Site, study: Study) -> bool:
    """Whether a type is an alias, and an ``isinstance`` of another file asks for it.

    An alias of the class alone is followed: that ``isinstance`` is looked at by itself.
    """
    if any(binding.value is site.reference for binding in study.project.aliases):
        return False
    match site.statement:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return any(
                module is not site.module
                and module.mentions(name)
                and type_expressions.is_checked(name, module.table)
                for module in study.project.modules
            )
    return False


def _is_imported(site: Site, study: Study) -> bool:
    """Whether another file names the tuple that a class stands in."""
    statement = site.statement
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    names = {t.id for t in targets if isinstance(t, ast.Name)}
    own = site.module.table.module
    if site.module.table.scope_of(site.node).module_scope() is not own:
        return False
    for module in study.project.modules:
        if module is not site.module and any(
            binding.name in names or binding.qualified.rpartition(".")[2] in names
            for binding in module.table.imports
        ):
            return True
        if any(a.attr in names for a in module.table.attributes):
            return True
    return False


def _has_method(site: Site, study: Study) -> Decision:
    """``hasattr(model, "no_sync")`` said that it is FSDP's: FSDP2 models have no such methods."""
    assert isinstance(site.node, ast.Call)
    assert site.receiver is not None
    found = study.models(site.receiver, site.module)
    proposal = study.proposal()
    name = proposal.name(site.module, PACKAGE, "FSDPModule", site.node)
    new = code("isinstance({m}, {n})", m=ast.unparse(site.receiver), n=name)
    if not found.certain:
        new = code("({i} or {h})", i=new, h=ast.unparse(site.node))
    proposal.replace(site.module, site.node, new)
    models = found.constructors
    return study.rewritten(site, RULE.code, "isinstance FSDPModule", proposal, models=models)


def _quoted(site: Site, study: Study) -> Decision:
    """An annotation in quotes: the names in it are replaced where all of them can be."""
    assert isinstance(site.node, ast.Constant)
    models = frozenset(study.constructors.values())
    text = str(site.node.value)
    found = [
        each
        for annotation in string_annotations.in_annotations(site.module.table)
        if annotation.string is site.node
        for each in string_references.references(annotation, study, site.module)
    ]
    others = [old for node, old in found if old not in TYPES or _deeper(node, old)]
    if others or not models or not text.isascii() or "\n" in text:
        missing = others[0].removeprefix("private:") if others else ""
        reason = f"FSDP2 has no {missing}" if models and others else study.no_models
        return study.left(
            site,
            RULE.code,
            reason or "the annotation is not plain text",
            "name what the annotated code takes now",
        )
    proposal = study.proposal()
    for node, old in sorted(found, key=lambda item: -item[0].col_offset):
        package, new = TYPES[old]
        if isinstance(node, ast.Attribute) and package == PACKAGE:
            new = f"{ast.unparse(node.value)}.{new}"
        else:
            new = proposal.name(site.module, package, new, site.node)
        text = text[: node.col_offset] + new + text[node.end_col_offset :]
    quote = "'" if site.module.source.segment(site.node).endswith("'") else '"'
    proposal.replace(site.module, site.node, code("{t}", t=f"{quote}{text}{quote}"))
    return study.rewritten(site, RULE.code, text, proposal, models=models)


def _deeper(node: ast.expr, old: str) -> bool:
    """``torch.distributed.fsdp.api.MixedPrecision``: FSDP2's names are not in FSDP1's modules."""
    if TYPES[old][0] != PACKAGE:
        return False
    owner = ast.unparse(node.value) if isinstance(node, ast.Attribute) else ""
    return owner.startswith("torch.") and owner != PACKAGE


def _compared(site: Site, study: Study) -> Decision:
    """``type(model) == FSDP``: an FSDP2 model has a class of its own for each class it shards."""
    models = frozenset(study.constructors.values())
    node = site.node
    assert isinstance(node, ast.Compare)
    sides = [node.left, *node.comparators]
    other = next((s for s in sides if s is not site.reference), None)
    simple = len(sides) == 2 and isinstance(node.ops[0], (ast.Eq, ast.NotEq, ast.Is, ast.IsNot))
    asked = other.args[0] if isinstance(other, ast.Call) and len(other.args) == 1 else None
    function = other.func if isinstance(other, ast.Call) else None
    known = isinstance(function, ast.Name) and function.id == "type"
    if not simple or not known or asked is None or not models:
        return study.left(
            site,
            RULE.code,
            "classes are compared, and an FSDP2 model is of another class",
            "ask isinstance(model, FSDPModule)",
            models=models,
            quiet=True,
        )
    proposal = study.proposal()
    name = proposal.name(site.module, PACKAGE, "FSDPModule", site.reference)
    no = "not " if isinstance(node.ops[0], (ast.NotEq, ast.IsNot)) else ""
    new = code("{no}isinstance({m}, {n})", no=no, m=asked, n=name)
    proposal.replace(site.module, node, new)
    return study.rewritten(site, RULE.code, "isinstance FSDPModule", proposal, models=models)


def _branch(branch: Branch, site: Site, study: Study) -> Decision:
    """Migrated models take the branch that the project has for FSDP2."""
    models = frozenset(study.constructors.values())
    proposal = study.proposal()
    if branch.head is branch.node and not branch.node.orelse:
        proposal.delete(site.module, branch.node)
    else:
        proposal.drop_branch(site.module, branch.node)
    taken = branch.taken or branch.head
    proposal.mark(site.module, taken.test, RULE.code, sentences(TAKES_OTHER))
    decision = study.rewritten(
        site, RULE.code, "the branch for FSDP2 is left", proposal, models=models
    )
    return replace(decision, outcome=Outcome.REVIEW, help=TAKES_OTHER)


def _version(site: Site, study: Study) -> Decision:
    """No model is of the version that the project has for FSDP1's."""
    models = frozenset(study.constructors.values())
    branch = next((b for b in study.branches if b.asks is site.node), None)
    if branch is None:  # it builds models
        return study.left(
            site,
            RULE.code,
            "models are wrapped where the model is asked for its version of FSDP",
            "wrap them elsewhere, and run again",
            models=models,
            quiet=True,
        )
    proposal = study.proposal()
    if branch.rest:
        for statement in branch.rest:
            proposal.delete(site.module, statement)
    elif branch.head is branch.node and not branch.node.orelse:
        proposal.delete(site.module, branch.node)
    else:
        proposal.drop_branch(site.module, branch.node)
    return study.rewritten(
        site, RULE.code, "no model is of FSDP1's version any more", proposal, models=models
    )


TAKES_OTHER = "models that were FSDP1 take the branch for FSDP2 now: see that it does all they need"
