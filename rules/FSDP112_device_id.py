"""Take the device from the mesh instead of `device_id`.

## What changes
`device_id` disappears. Where it has an index and nothing in the project calls
`torch.cuda.set_device`, such a call is emitted before sharding, of `torch.cuda` where the code says
that it runs on CUDA, else of the machine's accelerator. Where the device may be the CPU, a mesh of
the type of the given device is passed (`torch.device(device).type`).

## Why
`fully_shard` uses the current device of the mesh's device type; its default mesh takes the
machine's accelerator, whatever device the model is on.

## What stays for you
Nothing.

## Since torch
2.6

## References
- torch/distributed/fsdp/_fully_shard/_fsdp_init.py
"""

import ast

from fsdp_migrate.families.wrapping import devices, placing, strategy
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.rule import Example, Keep, Rule
from fsdp_migrate.planning.shard_plan import ShardPlan

RULE = Rule(code="FSDP112", name="device_id", handles=("FullyShardedDataParallel(device_id=)",))

EXAMPLES = [
    Example(
        title="the current device",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, device_id=torch.cuda.current_device())
""",
        after="""\
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
""",
    ),
    Example(
        title="an index that nothing else makes current",
        before="""\
import os

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP



def shard(model):
    local_rank = int(os.environ["LOCAL_RANK"])
    return FSDP(model, device_id=local_rank)
""",
        after="""\
import os

import torch
from torch.distributed.fsdp import fully_shard



def shard(model):
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.get_device_module().set_device(local_rank)
    return fully_shard(model)
""",
    ),
    Example(
        title="a device that may be the CPU",
        before="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP



def shard(model):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return FSDP(model, device_id=device)
""",
        after="""\
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard



def shard(model):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    return fully_shard(model, mesh=mesh)
""",
    ),
    Example(
        title="a device that is given as a string",
        before="""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

device = "cuda:0" if torch.cuda.is_available() else "cpu"
model = FSDP(nn.Linear(3, 3), device_id=torch.device(device))
""",
        after="""\
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

device = "cuda:0" if torch.cuda.is_available() else "cpu"
model = nn.Linear(3, 3)
mesh = init_device_mesh(torch.device(device).type, (torch.distributed.get_world_size(),))
fully_shard(model, mesh=mesh)
""",
    ),
    Example(
        title="an index in a program that says CUDA",
        before="""\
import os

import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def setup():
    dist.init_process_group("nccl")


def main(model):
    setup()
    local_rank = int(os.environ["LOCAL_RANK"])
    return FSDP(model, device_id=local_rank)
""",
        after="""\
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def setup():
    dist.init_process_group("nccl")


def main(model):
    setup()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    return fully_shard(model)
""",
    ),
    Example(
        title="a function that makes the device current",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def pick(rank):
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


def build(net, rank):
    return FSDP(net, device_id=pick(rank))
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard


def pick(rank):
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


def build(net, rank):
    pick(rank)
    return fully_shard(net)
""",
    ),
    Example(
        title="a device that only the caller knows",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net, device=None):
    return FSDP(net, device_id=device)
""",
        after="""\
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build(net, device=None):
    accelerator = torch.accelerator.current_accelerator() or torch.device("cpu")
    device_2 = accelerator if device is None else torch.device(device)
    if device_2.index is not None:
        torch.get_device_module(device_2).set_device(device_2)
    mesh = init_device_mesh(device_2.type, (dist.get_world_size(),))
    return fully_shard(net, mesh=mesh)
""",
    ),
    Example(
        title="the CPU",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    return FSDP(net, device_id=torch.device("cpu"))
""",
        after="""\
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build(net):
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    return fully_shard(net, mesh=mesh)
""",
    ),
    Example(
        title="an index that is made current before",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net, local_rank):
    torch.cuda.set_device(local_rank)
    return FSDP(net, device_id=local_rank)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard


def build(net, local_rank):
    torch.cuda.set_device(local_rank)
    return fully_shard(net)
""",
    ),
]

KEEP = [
    Keep(
        title="DDP's device_ids",
        source="""\
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(model, device_ids=[0])
""",
    ),
    Keep(
        title="a model of fairscale's",
        source="""\
from fairscale.nn import FullyShardedDataParallel

model = FullyShardedDataParallel(model, compute_device="cuda")
""",
    ),
    Keep(
        title="a device_id of something else",
        source="""\
def place(model, device_id):
    return model.to(device_id)


place(model, device_id=0)
""",
    ),
    Keep(
        title="a device made current for something else",
        source="""\
import torch

torch.cuda.set_device(local_rank)
model = model.to(local_rank)
""",
    ),
    Keep(
        title="a string that names a device for a tensor",
        source="""\
import torch

device = "cuda:0" if torch.cuda.is_available() else "cpu"
inputs = torch.zeros(3, device=torch.device(device))
""",
    ),
    Keep(
        title="the accelerator under FSDP2",
        source="""\
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

accelerator = torch.accelerator.current_accelerator() or torch.device("cpu")
fully_shard(model, mesh=init_device_mesh(accelerator.type, (2,)))
""",
    ),
    Keep(
        title="a device module of its own",
        source="""\
import torch


def choose(local_rank):
    torch.get_device_module().set_device(local_rank)
    return torch.device("cuda", local_rank)
""",
    ),
    Keep(
        title="DDP on a device that is chosen by flag",
        source="""\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

device = torch.device("cuda", rank) if args.gpu else torch.device("cpu")
model = DDP(model.to(device), device_ids=[device] if args.gpu else None)
""",
    ),
    Keep(
        title="a mesh on the CPU",
        source="""\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
""",
    ),
]


def decide(site: Site, study: Study) -> Decision:
    plan, value, _ = study.argument(site)
    if isinstance(value, ast.Constant) and value.value is None:
        return study.dropped(site, RULE.code, "dropped, it was None")
    device = devices.read(plan.constructor, study)
    grouped = plan.constructor.has("process_group") and "mesh" in plan.everywhere
    has_mesh = plan.constructor.has("device_mesh") or grouped
    made_current = placing.make_current(plan, study)
    if not device.is_accelerator and not has_mesh:
        asked = plan.constructor.has("sharding_strategy")
        at_run_time = asked and strategy.of(plan.constructor, study) is None
        if "mesh" not in plan.everywhere and not at_run_time:  # sharding_kwargs makes its own
            _explicit_mesh(plan, study)
        return study.rewritten(site, RULE.code, "the mesh says which device")
    if made_current:
        return study.rewritten(site, RULE.code, made_current)
    placing.keep_effects(plan, study)
    return study.dropped(site, RULE.code, "dropped, the current device is used")


def _explicit_mesh(plan: ShardPlan, study: Study) -> None:
    init = plan.name("torch.distributed.device_mesh", "init_device_mesh")
    kind = placing.type_code(plan, study)
    shape = f"({plan.dist()}.get_world_size(),)"
    make = code("{i}({k}, {s})", i=init, k=kind, s=shape)
    name = study.made_before(plan.constructor, make)
    if not name:
        name = plan.fresh("mesh")
        plan.setup.append(code("{n} = {m}", n=name, m=make))
        study.make(plan.constructor, make, name)
    plan.everywhere["mesh"] = code("{n}", n=name)
