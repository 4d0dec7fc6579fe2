"""Load an optimizer's whole state, old FSDP1 files included.

## What changes
`FSDP.optim_state_dict_to_load` (both argument orders), `scatter_full_optim_state_dict`,
`shard_full_optim_state_dict` and `flatten_sharded_optim_state_dict`, together with the
`optimizer.load_state_dict` that takes their result, become one call of `load_full_optimizer`, a
support function around `set_optimizer_state_dict`.

## Why
DCP loads by parameter name and into the optimizer itself. FSDP1 files need care: one `step` tensor
shared by all parameters of a unit would be counted once for each, and integer keys load nothing,
both without an error.

## What stays for you
Results that are used for anything but `load_state_dict`.

## Since torch
2.6

## References
- torch/distributed/checkpoint/state_dict.py (`_load_optim_state_dict`)
- torch/distributed/fsdp/_optim_utils.py
"""

import ast

from fsdp_migrate.families.checkpoints import optimstates, statedicts
from fsdp_migrate.families.names.deletions import drop_assignment
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.rule import Example, Keep, Rule
from fsdp_migrate.planning.shard_plan import DCP

RULE = Rule(
    code="FSDP305",
    name="load_optimizer_state",
    handles=(
        "FullyShardedDataParallel.optim_state_dict_to_load",
        "FullyShardedDataParallel.scatter_full_optim_state_dict",
        "FullyShardedDataParallel.shard_full_optim_state_dict",
        "FullyShardedDataParallel.flatten_sharded_optim_state_dict",
    ),
)

EXAMPLES = [
    Example(
        title="as saved, on every rank",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
state = torch.load("optimizer.pt")
state = FSDP.optim_state_dict_to_load(model, optimizer, state)
optimizer.load_state_dict(state)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import load_full_optimizer

model = fully_shard(model)
state = torch.load("optimizer.pt")
load_full_optimizer(model, optimizer, state)
""",
        support=("load_full_optimizer",),
    ),
    Example(
        title="scattered from rank 0",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def resume(model, optimizer, full_state):
    model = FSDP(model)
    optimizer.load_state_dict(
        FSDP.scatter_full_optim_state_dict(full_state, model, optim=optimizer)
    )
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import load_full_optimizer

def resume(model, optimizer, full_state):
    model = fully_shard(model)
    load_full_optimizer(model, optimizer, full_state, from_rank0=True)
""",
        support=("load_full_optimizer",),
    ),
    Example(
        title="in the order of torch 2.0",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def resume(net, optim, saved):
    net = FSDP(net)
    state = FSDP.optim_state_dict_to_load(saved, net, optim)
    optim.load_state_dict(state)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import load_full_optimizer

def resume(net, optim, saved):
    net = fully_shard(net)
    load_full_optimizer(net, optim, saved)
""",
        support=("load_full_optimizer",),
    ),
    Example(
        title="a state that only rank 0 has read",
        before="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)


def resume(net, optimizer, path):
    model = FSDP(net)
    with FSDP.state_dict_type(
        model,
        StateDictType.FULL_STATE_DICT,
        FullStateDictConfig(rank0_only=True),
        FullOptimStateDictConfig(rank0_only=True),
    ):
        saved = torch.load(path) if dist.get_rank() == 0 else None
        state = FSDP.optim_state_dict_to_load(model, optimizer, saved)
        optimizer.load_state_dict(state)
""",
        after="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from fsdp2_support import load_full_optimizer


def resume(net, optimizer, path):
    model = fully_shard(net)
    saved = torch.load(path) if dist.get_rank() == 0 else None
    load_full_optimizer(model, optimizer, saved, from_rank0=True)
""",
        support=("load_full_optimizer",),
    ),
    Example(
        title="a state that is loaded elsewhere",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def convert(net, optimizer, saved):
    model = FSDP(net)
    return FSDP.optim_state_dict_to_load(model, optimizer, saved)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import optimizer_state_to_load


def convert(net, optimizer, saved):
    model = fully_shard(net)
    return optimizer_state_to_load(model, optimizer, saved)
""",
        support=("optimizer_state_to_load",),
    ),
    Example(
        title="only for models that are sharded",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def resume(net, args, saved):
    model = FSDP(net) if args.fsdp else net
    optimizer = torch.optim.AdamW(model.parameters())
    state = saved["optimizer"]
    if args.fsdp:
        state = FSDP.optim_state_dict_to_load(model, optimizer, state)
    optimizer.load_state_dict(state)
    return model, optimizer
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import load_full_optimizer


def resume(net, args, saved):
    model = fully_shard(net) if args.fsdp else net
    optimizer = torch.optim.AdamW(model.parameters())
    state = saved["optimizer"]
    if args.fsdp:
        load_full_optimizer(model, optimizer, state)
    if not args.fsdp:
        optimizer.load_state_dict(state)
    return model, optimizer
""",
        support=("load_full_optimizer",),
    ),
    Example(
        title="a state that some strategies read on rank 0 alone",
        before="""\
import torch
from checkpoints import read
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def resume(net, args):
    kind = ShardingStrategy[args.strategy]
    model = FSDP(net, sharding_strategy=kind)
    optimizer = torch.optim.Adam(model.parameters())
    state = FSDP.scatter_full_optim_state_dict(read(kind == ShardingStrategy.NO_SHARD), model)
    optimizer.load_state_dict(state)
    return model, optimizer
""",
        after="""\
import torch
from checkpoints import read
from torch.distributed.fsdp import fully_shard

from fsdp2_support import ShardingStrategy, load_full_optimizer, sharding_kwargs


def resume(net, args):
    kind = ShardingStrategy[args.strategy]
    model = fully_shard(net, **sharding_kwargs(kind))
    optimizer = torch.optim.Adam(model.parameters())
    load_full_optimizer(model, optimizer, read(kind == ShardingStrategy.NO_SHARD), from_rank0=True)
    return model, optimizer
""",
        support=("load_full_optimizer", "sharding_kwargs", "ShardingStrategy"),
    ),
    Example(
        title="a result that is deleted after it was loaded",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def resume(net, optimizer, path):
    model = FSDP(net)
    saved = torch.load(path)
    sharded = FSDP.scatter_full_optim_state_dict(saved, model)
    optimizer.load_state_dict(sharded)
    del saved, sharded
    saved = torch.load(path)
    sharded = FSDP.scatter_full_optim_state_dict(saved, model)
    optimizer.load_state_dict(sharded)
    del sharded
    saved = FSDP.scatter_full_optim_state_dict(saved, model)
    optimizer.load_state_dict(saved)
    del saved
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import load_full_optimizer


def resume(net, optimizer, path):
    model = fully_shard(net)
    saved = torch.load(path)
    load_full_optimizer(model, optimizer, saved, from_rank0=True)
    del saved
    saved = torch.load(path)
    load_full_optimizer(model, optimizer, saved, from_rank0=True)
    load_full_optimizer(model, optimizer, saved, from_rank0=True)
    del saved
""",
        support=("load_full_optimizer",),
    ),
    Example(
        title="a result that is deleted where there may be another",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def resume(net, optimizer, saved):
    model = FSDP(net)
    if saved:
        state = FSDP.scatter_full_optim_state_dict(saved, model)
        optimizer.load_state_dict(state)
    else:
        state = optimizer.state_dict()
        print(state.keys())
    del state
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import load_full_optimizer


def resume(net, optimizer, saved):
    model = fully_shard(net)
    if saved:
        state = None
        load_full_optimizer(model, optimizer, saved, from_rank0=True)
    else:
        state = optimizer.state_dict()
        print(state.keys())
    del state
""",
        support=("load_full_optimizer",),
    ),
]

KEEP = [
    Keep(
        title="a state that a strategy of the project's own chooses",
        source="""\
import torch
from training import Strategy

optimizer.load_state_dict(torch.load(path if strategy == Strategy.NO_SHARD else other))
""",
    ),
    Keep(
        title="a state that is loaded and deleted",
        source="""\
import torch

state = torch.load("optimizer.pt")
optimizer.load_state_dict(state)
del state
""",
    ),
    Keep(
        title="a state of some models that is deleted",
        source="""\
if args.resume:
    state = convert(saved)
    optimizer.load_state_dict(state)
    del saved, state
""",
    ),
    Keep(
        title="a state that is renamed for some models",
        source="""\
if args.compiled:
    state = without_prefix(state)
optimizer.load_state_dict(state)
""",
    ),
    Keep(
        title="a result that is only returned",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def convert(model, optimizer, state):
    return FSDP.optim_state_dict_to_load(model, optimizer, state)
""",
        left=True,
    ),
    Keep(
        title="a result that nothing loads",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def resume(model, state):
    sharded = FSDP.scatter_full_optim_state_dict(state, model)
    print("loaded")
""",
        left=True,
    ),
    Keep(
        title="an optimizer's own load",
        source="""\
import torch

optimizer.load_state_dict(torch.load("optimizer.pt"))
""",
    ),
    Keep(
        title="a state that is broadcast by hand",
        source="""\
import torch.distributed as dist

box = [optimizer.state_dict()]
dist.broadcast_object_list(box, src=0)
optimizer.load_state_dict(box[0])
""",
    ),
    Keep(
        title="another optimizer's conversion",
        source="""\
state = optimizer.optim_state_dict_to_load(saved)
""",
    ),
]


def decide(site: Site, study: Study) -> Decision:
    name = site.construct.rpartition(".")[2]
    load = optimstates.read(site, name, study)
    models = study.models_of_static(load.model, site.module).constructors
    by_setting = name == "optim_state_dict_to_load"
    setting = statedicts.at(site.node, site.module, models, study)
    at_run_time = by_setting and statedicts.is_for_run_time(setting, study)
    alone = bool(load.problem) or at_run_time  # the conversion, without the load of its result
    complete = load.model is not None and load.optimizer is not None and load.state is not None
    problem = "" if complete else load.problem or "the optimizer is not passed"
    if not problem and by_setting and not at_run_time:
        problem = setting.problem
    if problem:
        return study.left(
            site,
            RULE.code,
            problem,
            "load with set_optimizer_state_dict(model, optimizer, state)",
            models=models,
            unknown_state=problem == setting.problem,
        )
    assert load.model is not None
    assert load.optimizer is not None
    assert load.state is not None
    proposal = study.proposal()
    module = site.module
    sharded = name.startswith("flatten_sharded") or (by_setting and setting.kind == "SHARDED")
    if at_run_time:
        message = "optim_state_dict_to_load"
    elif alone:
        message = "optimizer_state_to_load"
    else:
        message = "set_optimizer_state_dict" if sharded else "load_full_optimizer"
    if sharded and not alone:
        function = proposal.name(module, DCP, message, site.node)
    else:
        function = proposal.support(module, message, site.node)
    only_rank0 = name.startswith("scatter") or (
        by_setting and not sharded and not at_run_time and setting.optim_rank0_only
    )
    new = code(
        "{f}({m}, {o}, {s}{r})",
        f=function,
        m=load.model,
        o=load.optimizer,
        s=load.state,
        r=", from_rank0=True" if only_rank0 else "",
    )
    if alone:
        assert isinstance(site.node, ast.expr)
        proposal.replace(module, site.node, new)
        return study.rewritten(site, RULE.code, message, proposal, models=models)
    assert load.target is not None
    if load.branch is not None:
        assert load.assignment is not None
        proposal.replace_statement(module, load.assignment, new)
        statement = module.table.statement(load.target)
        simple = isinstance(load.branch.test, (ast.Name, ast.Attribute, ast.Call))
        template = "if not {t}:\n    {l}" if simple else "if not ({t}):\n    {l}"
        other = code(template, t=load.branch.test, l=load.target)
        proposal.replace_statement(module, statement, other)
        return study.rewritten(site, RULE.code, message, proposal, models=models)
    proposal.replace(module, load.target, new)
    if load.assignment is not None:
        drop_assignment(load.assignment, module, study, proposal)
    return study.rewritten(site, RULE.code, message, proposal, models=models)
