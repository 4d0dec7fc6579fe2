"""Keep ignored parameters out of sharding with `ignored_params`.

## What changes
`ignored_modules` and `ignored_states` (`ignored_parameters` in torch 2.0) become one set of
parameters, given to every `fully_shard` call; modules inside ignored ones do not become units.

## Why
`ignored_params` must be a set, and it protects only what lies below the call that gets it.

## What stays for you
Ignored parameters stay plain tensors beside `DTensor`s: clipping goes through a support function,
and optimizers need `foreach=False`. FSDP2 moves the buffers of ignored modules to the device, FSDP1
did not.

## Since torch
2.7

## References
- https://github.com/pytorch/pytorch/issues/149074
- torch/distributed/fsdp/_fully_shard/_fsdp_init.py
"""

import ast

from fsdp_migrate.analysis.values import Constant, Unknown
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(
    code="FSDP113",
    name="ignored",
    handles=(
        "FullyShardedDataParallel(ignored_modules=)",
        "FullyShardedDataParallel(ignored_states=)",
    ),
    since="2.7",
)

EXAMPLES = [
    Example(
        title="modules of one unit",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def shard(model):
    return FSDP(model, ignored_modules=[model.head])
""",
        after="""\
from torch.distributed.fsdp import fully_shard

def shard(model):
    # TODO(fsdp-migrate FSDP113): Ignored parameters stay plain tensors: build the optimizer with foreach=False.
    ignored_modules = [model.head]
    ignored_params = {p for m in ignored_modules for p in m.parameters()}
    return fully_shard(model, ignored_params=ignored_params)
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="modules that the policy would have picked",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from layers import Block


def shard(model, frozen):
    model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), ignored_modules=frozen)
    return model
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from layers import Block


def shard(model, frozen):
    # TODO(fsdp-migrate FSDP113): Ignored parameters stay plain tensors: build the optimizer with foreach=False.
    ignored_modules = list(frozen or ())
    ignored_params = {p for m in ignored_modules for p in m.parameters()}
    ignored = {m for x in ignored_modules for m in x.modules()}
    for module in reversed(list(model.modules())):
        if module is not model and module not in ignored and isinstance(module, Block):
            fully_shard(module, ignored_params=ignored_params)
    fully_shard(model, ignored_params=ignored_params)
    return model
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="parameters or modules",
        before="""\
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model, states):
    return FSDP(model, ignored_states=states)
""",
        after="""\
import torch.nn as nn
from torch.distributed.fsdp import fully_shard


def shard(model, states):
    # TODO(fsdp-migrate FSDP113): Ignored parameters stay plain tensors: build the optimizer with foreach=False.
    ignored_states = list(states or ())
    ignored_params = {
        p
        for x in ignored_states
        for p in (x.parameters() if isinstance(x, nn.Module) else [x])
    }
    return fully_shard(model, ignored_params=ignored_params)
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="parameters, by torch 2.0's name",
        before="""\
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model):
    return FSDP(model, ignored_parameters=[model.scale])
""",
        after="""\
import torch.nn as nn
from torch.distributed.fsdp import fully_shard


def shard(model):
    # TODO(fsdp-migrate FSDP113): Ignored parameters stay plain tensors: build the optimizer with foreach=False.
    ignored_states = [model.scale]
    ignored_params = {
        p
        for x in ignored_states
        for p in (x.parameters() if isinstance(x, nn.Module) else [x])
    }
    return fully_shard(model, ignored_params=ignored_params)
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="parameters, by torch 2.0's name, with what is only known at run time",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model, **settings):
    return FSDP(model, ignored_parameters=[model.scale], **settings)
""",
        after="""\
from fsdp2_support import shard as fsdp2_shard


def shard(model, **settings):
    return fsdp2_shard(model, ignored_states=[model.scale], **settings)
""",
        support=("shard",),
    ),
]

KEEP = [
    Keep(
        title="another library's ignored parameters",
        source="""\
from sharding import FSDP


def shard(model):
    return FSDP(model, ignored_parameters=[model.scale])
""",
    ),
    Keep(
        title="parameters under two names, of which no release of torch knows both",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model):
    return FSDP(model, ignored_states=[model.scale], ignored_parameters=[model.bias])
""",
        left=True,
    ),
    Keep(
        title="both at once",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def shard(model, modules, states):
    return FSDP(model, ignored_modules=modules, ignored_states=states)
""",
        left=True,
    ),
    Keep(
        title="DDP's parameters to ignore",
        source="""\
from torch.nn.parallel import DistributedDataParallel as DDP

DDP._set_params_and_buffers_to_ignore_for_model(model, ["head.weight"])
""",
    ),
    Keep(
        title="FSDP2's ignored parameters",
        source="""\
from torch.distributed.fsdp import fully_shard

fully_shard(model, ignored_params=set(model.head.parameters()))
""",
    ),
]

REVIEW = "ignored parameters stay plain tensors: build the optimizer with foreach=False"


def decide(site: Site, study: Study) -> Decision:
    plan, value, name = study.argument(site)
    if isinstance(value, ast.Constant) and value.value is None:
        return study.dropped(site, RULE.code, "dropped, it was None")
    if "ignored_params" in plan.everywhere:
        return study.left(
            site,
            RULE.code,
            "both ignored_modules and ignored_states are given, which FSDP1 refuses",
            "give one of them",
            final=True,
        )
    listed = plan.fresh(name)
    if isinstance(value, (ast.List, ast.Tuple)):
        plan.setup.append(code("{n} = {v}", n=listed, v=value))
    else:
        values = study.values(value, site.module)
        certain = not any(isinstance(v, (Constant, Unknown)) for v in values)
        given = code("{v}" if certain else "{v} or ()", v=value)
        plan.setup.append(code("{n} = list({g})", n=listed, g=given))
    if name == "ignored_modules":
        parameters = code("{{p for m in {n} for p in m.parameters()}}", n=listed)
        modules: Code | None = code("{{m for x in {n} for m in x.modules()}}", n=listed)
    else:
        nn = plan.proposal.module_name(site.module, "torch.nn", "nn", plan.constructor.reference)
        parameters = code(
            "{{p for x in {n} for p in (x.parameters() if isinstance(x, {nn}.Module) else [x])}}",
            n=listed,
            nn=nn,
        )
        modules = code(
            "{{m for x in {n} if isinstance(x, {nn}.Module) for m in x.modules()}}",
            n=listed,
            nn=nn,
        )
    name = plan.fresh("ignored_params")
    plan.setup.append(code("{n} = {p}", n=name, p=parameters))
    plan.everywhere["ignored_params"] = code("{n}", n=name)
    plan.ignored = modules
    return study.rewritten(site, RULE.code, "ignored_params", review=REVIEW)
