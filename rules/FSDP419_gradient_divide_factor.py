"""The factors that FSDP1 divides gradients by.

## What changes
Nothing: what sets `_gradient_predivide_factor` or `_gradient_postdivide_factor` of a model is left,
with a marker, and its migration is held back.

## Why
FSDP1 divides gradients by the first before they are reduced and by the second afterwards; together
they are the number of ranks unless the project sets them. On an FSDP2 model they are attributes
that nothing reads: gradients would have another size, without an error.

## What stays for you
Call `set_gradient_divide_factor` (torch 2.8; `set_reduce_scatter_divide_factor` before) with the
product of the two. It is not recursive: call it on every `FSDPModule` of the model. When the product
is the number of ranks, drop the assignment.

## Since torch
2.6

## References
- torch/distributed/fsdp/_runtime_utils.py (`_div_if_needed`)
- torch/distributed/fsdp/_fully_shard/_fully_shard.py (`set_gradient_divide_factor`)
"""

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1 import references
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Finder, Keep, Rule


def _divide_factors(study: Study, module: Module) -> Iterator[Site]:
    return references.divide_factors(study.tracer, module)


RULE = Rule(
    code="FSDP419",
    name="gradient_divide_factor",
    handles=("gradient divide factor",),
    finders=(Finder(140, _divide_factors),),
)

EXAMPLES = [
    Example(
        title="set on the model",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    model = FSDP(net)
    model._gradient_predivide_factor = 1.0
    return model
""",
        after="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    model = FSDP(net)
    # TODO(fsdp-migrate FSDP419): Nothing reads this factor on an FSDP2 model, and gradients are divided by the number of ranks. Call set_gradient_divide_factor (torch 2.8) with the product of both factors on every FSDPModule of the model, for it is not recursive.
    model._gradient_predivide_factor = 1.0
    return model
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="set on every unit",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net, factor):
    model = FSDP(net)
    for unit in FSDP.fsdp_modules(model):
        unit._gradient_predivide_factor *= factor
        setattr(unit, "_gradient_postdivide_factor", 1.0)
    return model
""",
        after="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net, factor):
    model = FSDP(net)
    for unit in FSDP.fsdp_modules(model):
        # TODO(fsdp-migrate FSDP419): Nothing reads this factor on an FSDP2 model, and gradients are divided by the number of ranks. Call set_gradient_divide_factor (torch 2.8) with the product of both factors on every FSDPModule of the model, for it is not recursive.
        unit._gradient_predivide_factor *= factor
        # TODO(fsdp-migrate FSDP419): Nothing reads this factor on an FSDP2 model, and gradients are divided by the number of ranks. Call set_gradient_divide_factor (torch 2.8) with the product of both factors on every FSDPModule of the model, for it is not recursive.
        setattr(unit, "_gradient_postdivide_factor", 1.0)
    return model
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="read",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    model = FSDP(net)
    return model, model._gradient_predivide_factor
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def build(net):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP419): An FSDP2 model has no such factor. Call set_gradient_divide_factor (torch 2.8) with the product of both factors on every FSDPModule of the model, for it is not recursive.
    return model, model._gradient_predivide_factor
""",
        outcome=Outcome.LEFT,
    ),
]

KEEP = [
    Keep(
        title="fairscale's factor",
        source="""\
from fairscale.nn import FullyShardedDataParallel as FSDP

model = FSDP(model)
model.gradient_predivide_factor = 1.0
""",
    ),
    Keep(
        title="an attribute of the project's own class",
        source="""\
class Reducer:
    def __init__(self, ranks):
        self._gradient_predivide_factor = ranks
""",
    ),
    Keep(
        title="FSDP2's factor",
        source="""\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
model.set_gradient_divide_factor(8.0)
""",
    ),
]


def decide(site: Site, study: Study) -> Decision:
    assert site.receiver is not None
    models = study.models_of_static(site.receiver, site.module).constructors
    help_ = (
        "call set_gradient_divide_factor (torch 2.8) with the product of both factors on every "
        "FSDPModule of the model, for it is not recursive"
    )
    node = site.node
    asks = isinstance(node, ast.Call) and getattr(node.func, "id", "") != "setattr"
    if asks or isinstance(getattr(node, "ctx", None), ast.Load):
        reason = "an FSDP2 model has no such factor"
        return study.left(site, RULE.code, reason, help_, models=models, quiet=asks)
    return study.left(
        site,
        RULE.code,
        "nothing reads this factor on an FSDP2 model, and gradients are divided by the number of "
        "ranks",
        help_,
        models=models,
        quiet=True,
    )
