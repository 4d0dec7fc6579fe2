"""Give every rank rank 0's weights with DCP instead of `sync_module_states`.

## What changes
Rank 0's full state is taken before sharding and loaded after it with `set_model_state_dict(...,
StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))`; buffers, persistent or not, are
broadcast. `sync_module_states=False` disappears.

## Why
`fully_shard` synchronises nothing: every rank keeps its own slice of what it has. If ranks start
with different weights, the model becomes a mix of all of them, without an error. After sharding it
is too late: rank 0's full weights are gone.

Over a process group or a slice of a mesh, FSDP1 broadcast from the first rank of each group.
There `shard` of `fsdp2_support` builds the model and broadcasts within the group too.

## What stays for you
Models that only rank 0 materialises (`param_init_fn` with `to_empty`) are FSDP111's business.

## Since torch
2.6

## References
- torch/distributed/checkpoint/state_dict.py
- torch/distributed/fsdp/_init_utils.py (`_sync_module_states`)
"""

import ast

from fsdp_migrate.families.wrapping import meshes
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.rule import Example, Keep, Rule
from fsdp_migrate.planning.shard_plan import DCP, ShardPlan

RULE = Rule(
    code="FSDP110",
    name="sync_module_states",
    handles=("FullyShardedDataParallel(sync_module_states=)",),
)

EXAMPLES = [
    Example(
        title="rank 0's weights, loaded by DCP",
        before="""\
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP



def shard(model):
    model = FSDP(model, sync_module_states=True)  # every rank starts from rank 0's weights
    return model
""",
        after="""\
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard



def shard(model):
    # Taken from rank 0 before sharding, given to every rank after it.
    full_state = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    fully_shard(model)
    set_model_state_dict(
        model, full_state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    )
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
    return model
""",
    ),
    Example(
        title="a flag that is only known at run time",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def shard(model, args):
    model = FSDP(model, sync_module_states=args.sync)
    return model
""",
        after="""\
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard

def shard(model, args):
    sync_module_states = args.sync
    # Taken from rank 0 before sharding, given to every rank after it.
    if sync_module_states:
        full_state = get_model_state_dict(
            model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
        )
    fully_shard(model)
    if sync_module_states:
        set_model_state_dict(
            model,
            full_state,
            options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True),
        )
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
    return model
""",
    ),
    Example(
        title="nothing to synchronise",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, sync_module_states=False)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
""",
    ),
    Example(
        title="within a process group of its own",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def shard(model, group):
    return FSDP(model, process_group=group, sync_module_states=True)
""",
        after="""\
from fsdp2_support import shard as fsdp2_shard

def shard(model, group):
    return fsdp2_shard(model, process_group=group, sync_module_states=True)
""",
        support=("shard",),
    ),
    Example(
        title="within a slice of a mesh",
        before="""\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def shard(model):
    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("part", "shard"))
    return FSDP(model, device_mesh=mesh["shard"], sync_module_states=True)
""",
        after="""\
from torch.distributed.device_mesh import init_device_mesh

from fsdp2_support import shard as fsdp2_shard

def shard(model):
    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("part", "shard"))
    return fsdp2_shard(model, device_mesh=mesh["shard"], sync_module_states=True)
""",
        support=("shard",),
    ),
    Example(
        title="the only dimension of a mesh",
        before="""\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def shard(model):
    mesh = init_device_mesh("cuda", (8,), mesh_dim_names=("dp",))
    return FSDP(model, device_mesh=mesh["dp"], sync_module_states=True)
""",
        after="""\
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

def shard(model):
    mesh = init_device_mesh("cuda", (8,), mesh_dim_names=("dp",))
    # Taken from rank 0 before sharding, given to every rank after it.
    full_state = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    fully_shard(model, mesh=mesh["dp"])
    set_model_state_dict(
        model, full_state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    )
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
    return model
""",
    ),
]

KEEP = [
    Keep(
        title="an argument for a mesh of another function",
        source="""\
model = wrapper(model, device_mesh=mesh["dp"], sync_module_states=True)
""",
    ),
    Keep(
        title="weights that are broadcast within a slice",
        source="""\
import torch.distributed as dist

for parameter in model.parameters():
    dist.broadcast(parameter.data, group=mesh["shard"].get_group(), group_src=0)
""",
    ),
    Keep(
        title="DDP has its own way",
        source="""\
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(model, init_sync=True)
""",
    ),
    Keep(
        title="an already migrated call",
        source="""\
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
set_model_state_dict(model, state, options=options)
""",
    ),
    Keep(
        title="an argument of another function",
        source="""\
model = build(model, sync_module_states=True)
""",
    ),
    Keep(
        title="weights that are broadcast by hand",
        source="""\
import torch.distributed as dist

for parameter in model.parameters():
    dist.broadcast(parameter.data, src=0)
""",
    ),
]


def decide(site: Site, study: Study) -> Decision:
    plan, value, _ = study.argument(site)
    constant = study.literal(value, site.module)
    if constant is not None and not constant.value:
        return study.dropped(site, RULE.code, "dropped, it was False")
    if not meshes.has_one_first_rank(plan.constructor, study):
        return study.left(
            site,
            RULE.code,
            "sync_module_states over ranks that may have a first rank of their own",
            "broadcast the weights within the group or the mesh before sharding",
        )
    if plan.from_rank0:
        return study.rewritten(site, RULE.code, "load_rank0_state")
    _load_from_rank0(plan, None if constant is not None else value)
    return study.rewritten(site, RULE.code, "set_model_state_dict(broadcast_from_rank0=True)")


def _load_from_rank0(plan: ShardPlan, condition: ast.expr | None) -> None:
    get = plan.name(DCP, "get_model_state_dict")
    load = plan.name(DCP, "set_model_state_dict")
    options = plan.name(DCP, "StateDictOptions")
    state = plan.fresh("full_state")
    buffer = plan.fresh("buffer")
    take = code(
        "{g}({m}, options={o}(full_state_dict=True, cpu_offload=True))",
        g=get,
        m=plan.model,
        o=options,
    )
    give = code(
        "{s}({m}, {state}, options={o}(full_state_dict=True, broadcast_from_rank0=True))",
        s=load,
        m=plan.model,
        state=state,
        o=options,
    )
    broadcast = code(
        "for {b} in {m}.buffers():\n    {d}.broadcast({b}, src=0)",
        b=buffer,
        m=plan.model,
        d=plan.dist(),
    )
    comment = "# Taken from rank 0 before sharding, given to every rank after it."
    if condition is None:
        plan.before.append(code(comment + "\n{n} = {take}", n=state, take=take))
        plan.after += [give, broadcast]
        return
    flag = plan.sync_condition(condition)
    plan.before.append(code(comment + "\nif {f}:\n    {n} = {take}", f=flag, n=state, take=take))
    indented = code(
        "if {f}:\n    {give}\n    for {b} in {m}.buffers():\n        {d}.broadcast({b}, src=0)",
        f=flag,
        give=give,
        b=buffer,
        m=plan.model,
        d=plan.dist(),
    )
    plan.after.append(indented)
