"""Carry attributes over to the parameters that `fully_shard` makes.

## What changes
Where the project sets attributes of its own on parameters (`p._no_weight_decay = True`) and reads
them somewhere, they are collected by name before the model is sharded and set again after it.

## Why
`fully_shard` puts new parameters in place of the old ones, and nothing that was set on those stays.
What reads it with a default, such as the code that makes parameter groups, then decides otherwise,
without an error. FSDP1 with `use_orig_params=True` kept the parameters. Without it (the default)
their attributes were lost in flat parameters: then nothing is carried over, and nothing changes.

## What stays for you
Attributes that are set through functions outside the project, and hooks on parameters.

## Since torch
2.6

## References
- torch/distributed/fsdp/_fully_shard/_fsdp_param.py (`_init_sharded_param`)
"""

from fsdp_migrate.families.parameters import attributes
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.rule import Example, Finder, Keep, Rule

RULE = Rule(
    code="FSDP412",
    name="parameter_attributes",
    handles=("parameter attribute",),
    finders=(Finder(200, in_project=attributes.find_parameter_attributes),),
)

EXAMPLES = [
    Example(
        title="set by a layer, read for the parameter groups",
        before="""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Scan(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.decay = nn.Parameter(torch.zeros(dim))
        self.decay._no_weight_decay = True


def build(net):
    model = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({Scan}), use_orig_params=True)
    free = [p for p in model.parameters() if getattr(p, "_no_weight_decay", False)]
    return model, free
""",
        after="""\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


class Scan(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.decay = nn.Parameter(torch.zeros(dim))
        self.decay._no_weight_decay = True


def build(net):
    # fully_shard makes new parameters: what is set on them goes along.
    attributes = {name: vars(parameter) for name, parameter in net.named_parameters()}
    for module in reversed(list(net.modules())):
        if module is not net and isinstance(module, Scan):
            fully_shard(module)
    model = fully_shard(net)
    for name, parameter in net.named_parameters():
        vars(parameter).update(attributes[name])
    free = [p for p in model.parameters() if getattr(p, "_no_weight_decay", False)]
    return model, free
""",
    ),
    Example(
        title="set in a loop",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def wrap(model):
    for name, p in model.named_parameters():
        setattr(p, "is_norm", "norm" in name)
    model = FSDP(model, use_orig_params=True)
    return model, [p for p in model.parameters() if p.is_norm]
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def wrap(model):
    for name, p in model.named_parameters():
        setattr(p, "is_norm", "norm" in name)
    # fully_shard makes new parameters: what is set on them goes along.
    attributes = {
        name_2: vars(parameter)
        for name_2, parameter in model.named_parameters()
    }
    fully_shard(model)
    for name_2, parameter in model.named_parameters():
        vars(parameter).update(attributes[name_2])
    return model, [p for p in model.parameters() if p.is_norm]
""",
    ),
    Example(
        title="original parameters are a setting",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def wrap(model, args):
    model.head.weight.lr_scale = 0.1
    model = FSDP(model, use_orig_params=args.original)
    return model, {p: getattr(p, "lr_scale", 1.0) for p in model.parameters()}
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def wrap(model, args):
    model.head.weight.lr_scale = 0.1
    # fully_shard makes new parameters: what is set on them goes along.
    attributes = {
        name: vars(parameter)
        for name, parameter in model.named_parameters()
        if args.original
    }
    fully_shard(model)
    for name, parameter in model.named_parameters():
        vars(parameter).update(attributes.get(name, {}))
    return model, {p: getattr(p, "lr_scale", 1.0) for p in model.parameters()}
""",
    ),
    Example(
        title="FSDP1 lost them in the flat parameters of one model, and kept them in the other",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def wrap(policy, critic):
    for model in (policy, critic):
        model.head.weight.lr_scale = 0.1
    policy = FSDP(policy, use_orig_params=True)
    critic = FSDP(critic)
    parameters = [*policy.parameters(), *critic.parameters()]
    return policy, critic, {p: getattr(p, "lr_scale", 1.0) for p in parameters}
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def wrap(policy, critic):
    for model in (policy, critic):
        model.head.weight.lr_scale = 0.1
    # fully_shard makes new parameters: what is set on them goes along.
    attributes = {
        name: vars(parameter)
        for name, parameter in policy.named_parameters()
    }
    fully_shard(policy)
    for name, parameter in policy.named_parameters():
        vars(parameter).update(attributes[name])
    critic = fully_shard(critic)
    parameters = [*policy.parameters(), *critic.parameters()]
    return policy, critic, {p: getattr(p, "lr_scale", 1.0) for p in parameters}
""",
    ),
    Example(
        title="settings from elsewhere",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def wrap(model, **kwargs):
    model.head.weight.lr_scale = 0.1
    model = FSDP(model, **kwargs)
    return model, {p: getattr(p, "lr_scale", 1.0) for p in model.parameters()}
""",
        after="""\
from fsdp2_support import shard


def wrap(model, **kwargs):
    model.head.weight.lr_scale = 0.1
    model = shard(model, **kwargs)
    return model, {p: getattr(p, "lr_scale", 1.0) for p in model.parameters()}
""",
        support=("shard",),
    ),
]

KEEP = [
    Keep(
        title="a plain model",
        source="""\
for p in model.parameters():
    p._no_weight_decay = p.ndim < 2
decay = [p for p in model.parameters() if not p._no_weight_decay]
""",
    ),
    Keep(
        title="a model that FSDP2 sharded",
        source="""\
from torch.distributed.fsdp import fully_shard

model.head.weight.lr_scale = 0.1
fully_shard(model)
scales = [getattr(p, "lr_scale", 1.0) for p in model.parameters()]
""",
    ),
    Keep(
        title="what torch itself knows of a parameter",
        source="""\
for p in model.parameters():
    p.requires_grad = False
    p.grad = None
free = [p for p in model.parameters() if p.requires_grad]
""",
    ),
    Keep(
        title="an attribute that nothing reads",
        source="""\
import torch
from torch import nn


class Scan(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.decay = nn.Parameter(torch.zeros(dim))
        self.decay._no_weight_decay = True
""",
    ),
    Keep(
        title="attributes of what a mock makes up",
        source="""\
from unittest.mock import MagicMock

from torch.distributed.fsdp import fully_shard


def test_sizes(get_model):
    get_model.return_value.get_input_embeddings.return_value.weight.scale = 2.0
    model = MagicMock()
    model.head.weight.scale = 2.0
    assert model.head.weight.scale == 2.0
    fully_shard(model)
""",
    ),
    Keep(
        title="an attribute of a module",
        source="""\
for module in model.modules():
    module.scale = 2.0
scales = [getattr(module, "scale", 1.0) for module in model.modules()]
""",
    ),
]


def decide(site: Site, study: Study) -> Decision:
    models = attributes.concerned(site, study)
    for plan in study.plans.values():
        if plan.constructor in models:
            attributes.carry(plan, study)
    kept = [c for c in models if attributes.keeps(c, study) is not None]
    return study.rewritten(site, RULE.code, "carried over to the new parameters", models=kept)
