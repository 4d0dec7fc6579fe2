"""Name the ranks with a device mesh instead of a process group.

## What changes
`device_mesh=` becomes `mesh=`; a 2-D mesh made without names gets `mesh_dim_names=("replicate",
"shard")`. A process group becomes a mesh over the same ranks with `DeviceMesh.from_group`.

## Why
`fully_shard` takes a mesh: 1-D shards, 2-D replicates over the first dimension and shards over the
second, and insists on names. A dropped `process_group` would shard over all ranks.

## What stays for you
Meshes of three dimensions, and hybrid strategies on a mesh of one, which FSDP1 refused. FULL_SHARD
on a 2-D mesh (FSDP1 used its first dimension only, FSDP2 would make it hybrid) and tuples of groups
are left to the support function `shard`.

## Since torch
2.6

## References
- https://docs.pytorch.org/docs/stable/distributed.html (`DeviceMesh.from_group`)
- torch/distributed/fsdp/_init_utils.py (`_init_process_group_state`)
"""

import ast

from fsdp_migrate.analysis.values import Constant, Unknown
from fsdp_migrate.families.wrapping import meshes, placing, strategy
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(
    code="FSDP114",
    name="mesh",
    handles=(
        "FullyShardedDataParallel(device_mesh=)",
        "FullyShardedDataParallel(process_group=)",
        "unnamed mesh",
    ),
)

EXAMPLES = [
    Example(
        title="a mesh of two dimensions gets names",
        before="""\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

mesh = init_device_mesh("cuda", (2, 4))
model = FSDP(model, device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD)
""",
        after="""\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))
model = fully_shard(model, mesh=mesh)
""",
    ),
    Example(
        title="a slice of a larger mesh",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def shard(model, world_mesh):
    return FSDP(model, device_mesh=world_mesh["dp"])
""",
        after="""\
from torch.distributed.fsdp import fully_shard

def shard(model, world_mesh):
    return fully_shard(model, mesh=world_mesh["dp"])
""",
    ),
    Example(
        title="a process group becomes a mesh over the same ranks",
        before="""\
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP



def shard(model):
    group = dist.new_group([0, 1])
    return FSDP(model, process_group=group)
""",
        after="""\
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard



def shard(model):
    group = dist.new_group([0, 1])
    accelerator = torch.accelerator.current_accelerator() or torch.device("cpu")
    mesh = DeviceMesh.from_group(group, accelerator.type)
    return fully_shard(model, mesh=mesh)
""",
    ),
    Example(
        title="the default group is the default mesh",
        before="""\
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, process_group=dist.group.WORLD)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
""",
    ),
    Example(
        title="full sharding on a mesh of two dimensions",
        before="""\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))
model = FSDP(model, device_mesh=mesh)
""",
        after="""\
from torch.distributed.device_mesh import init_device_mesh

from fsdp2_support import shard

mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))
model = shard(model, device_mesh=mesh)
""",
        support=("shard",),
    ),
    Example(
        title="a tuple of groups",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def shard(model, groups):
    return FSDP(model, process_group=groups, sharding_strategy=ShardingStrategy.HYBRID_SHARD)
""",
        after="""\
from fsdp2_support import ShardingStrategy, shard as fsdp2_shard


def shard(model, groups):
    return fsdp2_shard(model, process_group=groups, sharding_strategy=ShardingStrategy.HYBRID_SHARD)
""",
        support=(
            "ShardingStrategy",
            "shard",
        ),
    ),
    Example(
        title="a mesh of ranks that are written out",
        before="""\
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

mesh = DeviceMesh("cuda", [[0, 1], [2, 3]])
model = FSDP(model, device_mesh=mesh, sharding_strategy=ShardingStrategy._HYBRID_SHARD_ZERO2)
""",
        after="""\
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

mesh = DeviceMesh("cuda", [[0, 1], [2, 3]], mesh_dim_names=("replicate", "shard"))
model = fully_shard(model, reshard_after_forward=False, mesh=mesh)
""",
    ),
    Example(
        title="a mesh of one dimension",
        before="""\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

mesh = init_device_mesh("cuda", (8,))
model = FSDP(model, process_group=None, device_mesh=mesh)
""",
        after="""\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cuda", (8,))
model = fully_shard(model, mesh=mesh)
""",
    ),
    Example(
        title="two dimensions of a larger mesh",
        before="""\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

mesh = init_device_mesh("cuda", (2, 2, 2), mesh_dim_names=("replicate", "shard", "tp"))
model = FSDP(
    model,
    device_mesh=mesh["replicate", "shard"],
    sharding_strategy=ShardingStrategy.HYBRID_SHARD,
)
""",
        after="""\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cuda", (2, 2, 2), mesh_dim_names=("replicate", "shard", "tp"))
model = fully_shard(model, mesh=mesh["replicate", "shard"])
""",
    ),
]

KEEP = [
    Keep(
        title="a mesh that FSDP1 never sees",
        source="""\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cuda", (8,))
fully_shard(model, mesh=mesh)
""",
    ),
    Keep(
        title="a mesh of three dimensions",
        source="""\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

mesh = init_device_mesh("cuda", (2, 2, 2))
model = FSDP(model, device_mesh=mesh)
""",
        left=True,
    ),
    Keep(
        title="a mesh for tensor parallelism",
        source="""\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

mesh = init_device_mesh("cuda", (2, 4))
parallelize_module(model, mesh, plan)
""",
    ),
    Keep(
        title="a group for a collective",
        source="""\
import torch.distributed as dist

group = dist.new_group([0, 1])
dist.all_reduce(loss, group=group)
""",
    ),
    Keep(
        title="DistributedDataParallel over a group",
        source="""\
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(model, process_group=group)
""",
    ),
    Keep(
        title="fairscale's process group",
        source="""\
from fairscale.nn import FullyShardedDataParallel as FSDP

model = FSDP(model, process_group=group)
""",
    ),
    Keep(
        title="a mesh of three dimensions for FSDP1",
        source="""\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

mesh = init_device_mesh("cuda", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
model = FSDP(model, device_mesh=mesh)
""",
        left=True,
    ),
    Keep(
        title="hybrid sharding on a mesh of one dimension",
        source="""\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

mesh = init_device_mesh("cuda", (8,))
model = FSDP(model, device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD)
""",
        left=True,
    ),
    Keep(
        title="ranks that are written out for a pipeline",
        source="""\
from torch.distributed.device_mesh import DeviceMesh

mesh = DeviceMesh("cuda", [[0, 1], [2, 3]])
stage = build_stage(mesh)
""",
    ),
]


def decide(site: Site, study: Study) -> Decision:
    if site.construct == "unnamed mesh":
        return study.converted(site, RULE.code, study.conversions[site.node])
    _, value, name = study.argument(site)
    if isinstance(value, ast.Constant) and value.value is None:
        return study.dropped(site, RULE.code, "dropped, it was None")
    return _mesh(site, study) if name == "device_mesh" else _group(site, study)


def _mesh(site: Site, study: Study) -> Decision:
    plan, value, _ = study.argument(site)
    chosen = strategy.of(plan.constructor, study)
    found = meshes.read(value, site.module, study)
    if found.dimensions == {2} and chosen in {"FULL_SHARD", "SHARD_GRAD_OP"}:
        return study.left(
            site,
            RULE.code,
            f"{chosen} on a 2-D mesh used only its first dimension in FSDP1",
            "pass the 1-D slice that is meant, mesh['name']",
        )
    if found.dimensions and max(found.dimensions) > 2:
        reason = "the mesh has more than two dimensions"
        return study.left(site, RULE.code, reason, "pass a slice of it", final=True)
    if found.dimensions == {1} and chosen in strategy.HYBRID:
        reason = f"{chosen} on a mesh of one dimension is an error in FSDP1"
        help_ = "build a 2-D mesh, or shard over the one that is given"
        return study.left(site, RULE.code, reason, help_, final=True)
    for call, module in found.unnamed:
        meshes.name_dimensions(call, module, plan, study)
    if chosen is not None:  # a run-time strategy hands the mesh to sharding_kwargs itself
        plan.everywhere["mesh"] = code("{m}", m=value)
    return study.rewritten(site, RULE.code, "mesh")


def _group(site: Site, study: Study) -> Decision:
    plan, value, _ = study.argument(site)
    if study.external(value, site.module) & meshes.WORLD:
        return study.dropped(site, RULE.code, "dropped, the default mesh is WORLD")
    chosen = strategy.of(plan.constructor, study)
    if chosen is None and not isinstance(value, ast.Tuple):
        return study.left(
            site,
            RULE.code,
            "the strategy, and with it whether this is one process group or two, is only known at "
            "run time",
            "build the mesh that is meant with DeviceMesh.from_group or init_device_mesh",
        )
    if isinstance(value, ast.Tuple) or chosen in strategy.HYBRID or chosen is None:
        return study.left(
            site,
            RULE.code,
            "a tuple of process groups says how to shard and replicate",
            'build one mesh with init_device_mesh(..., mesh_dim_names=("replicate", "shard"))',
        )
    mesh_class = plan.name("torch.distributed.device_mesh", "DeviceMesh")
    name = plan.fresh("mesh")
    kind = placing.type_code(plan, study)
    group = code("{g}", g=value)
    if any(isinstance(v, (Constant, Unknown)) for v in study.values(value, site.module)):
        group = code("{g} or {d}.group.WORLD", g=value, d=plan.dist())
    plan.setup.append(code("{n} = {c}.from_group({g}, {k})", n=name, c=mesh_class, g=group, k=kind))
    plan.everywhere["mesh"] = code("{n}", n=name)
    return study.rewritten(site, RULE.code, "mesh over the same ranks")
