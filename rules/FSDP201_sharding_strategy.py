"""Say a sharding strategy with `reshard_after_forward` and a mesh.

## What changes
| FSDP1 | FSDP2 |
|---|---|
| `FULL_SHARD` (default) | nothing: the default |
| `SHARD_GRAD_OP` | `reshard_after_forward=False` on every call |
| `HYBRID_SHARD` | the 2-D mesh alone |
| `_HYBRID_SHARD_ZERO2` | the 2-D mesh and `reshard_after_forward=False` |
| `NO_SHARD` | a mesh of `(world_size, 1)` |

## Why
`FULL_SHARD` is not `reshard_after_forward=True`: from torch 2.8 on that would reshard the root too,
one more all-gather a step than FSDP1. Boolean tables copied from the web get `SHARD_GRAD_OP` and
`NO_SHARD` wrong.

## What stays for you
Strategies that are only known at run time are chosen by a support function.

## Since torch
2.6

## References
- https://github.com/pytorch/pytorch/pull/155319
- torch/distributed/fsdp/_fully_shard/_fully_shard.py
"""

from fsdp_migrate.families.wrapping import strategy
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(
    code="FSDP201",
    name="sharding_strategy",
    handles=(
        "FullyShardedDataParallel(sharding_strategy=)",
        "ShardingStrategy",
        "annotation(ShardingStrategy)",
    ),
)

EXAMPLES = [
    Example(
        title="full sharding is the default",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

model = FSDP(model, sharding_strategy=ShardingStrategy.FULL_SHARD)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
""",
    ),
    Example(
        title="gradients and optimizer state only",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

model = FSDP(model, None, ShardingStrategy.SHARD_GRAD_OP)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

model = fully_shard(model, reshard_after_forward=False)
""",
    ),
    Example(
        title="hybrid sharding over nodes gets its mesh",
        before="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from layers import Block


def shard(model):
    return FSDP(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        device_id=torch.cuda.current_device(),
    )
""",
        after="""\
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from layers import Block


def shard(model):
    mesh = init_device_mesh(
        "cuda",
        (dist.get_world_size() // torch.cuda.device_count(), torch.cuda.device_count()),
        mesh_dim_names=("replicate", "shard"),
    )
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, Block):
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)
""",
    ),
    Example(
        title="no sharding at all",
        before="""\
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy



def shard(model):
    return FSDP(model, sharding_strategy=ShardingStrategy.NO_SHARD)
""",
        after="""\
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard



def shard(model):
    # TODO(fsdp-migrate FSDP201): NO_SHARD became a (world_size, 1) mesh; torch recommends DDP or replicate(), and before 2.10 NCCL may reduce wrongly over the one rank that shards.
    accelerator = torch.accelerator.current_accelerator() or torch.device("cpu")
    mesh = init_device_mesh(
        accelerator.type, (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard")
    )
    return fully_shard(model, mesh=mesh)
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="hybrid sharding on a device that is given",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from layers import Block


def shard(model, device: torch.device):
    torch.get_device_module(device).set_device(device)
    return FSDP(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        device_id=device,
    )
""",
        after="""\
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from layers import Block


def shard(model, device: torch.device):
    torch.get_device_module(device).set_device(device)
    devices_per_node = torch.get_device_module(device).device_count()
    mesh = init_device_mesh(
        device.type,
        (torch.distributed.get_world_size() // devices_per_node, devices_per_node),
        mesh_dim_names=("replicate", "shard"),
    )
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, Block):
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)
""",
    ),
    Example(
        title="no sharding on what the machine has",
        before="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def main(model):
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return FSDP(model, sharding_strategy=ShardingStrategy.NO_SHARD)
""",
        after="""\
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main(model):
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    # TODO(fsdp-migrate FSDP201): NO_SHARD became a (world_size, 1) mesh; torch recommends DDP or replicate(), and before 2.10 NCCL may reduce wrongly over the one rank that shards.
    accelerator = torch.accelerator.current_accelerator() or torch.device("cpu")
    mesh = init_device_mesh(
        accelerator.type, (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard")
    )
    return fully_shard(model, mesh=mesh)
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="no sharding in a program that says CUDA",
        before="""\
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def main(model):
    dist.init_process_group("nccl")
    return FSDP(model, sharding_strategy=ShardingStrategy.NO_SHARD)
""",
        after="""\
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main(model):
    dist.init_process_group("nccl")
    # TODO(fsdp-migrate FSDP201): NO_SHARD became a (world_size, 1) mesh; torch recommends DDP or replicate(), and before 2.10 NCCL may reduce wrongly over the one rank that shards.
    mesh = init_device_mesh(
        "cuda", (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard")
    )
    return fully_shard(model, mesh=mesh)
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="a name from the command line",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def shard(model, args):
    strategy = ShardingStrategy[args.strategy]
    return FSDP(model, sharding_strategy=strategy)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import ShardingStrategy, sharding_kwargs


def shard(model, args):
    strategy = ShardingStrategy[args.strategy]
    return fully_shard(model, **sharding_kwargs(strategy))
""",
        support=(
            "ShardingStrategy",
            "sharding_kwargs",
        ),
    ),
    Example(
        title="a name and a device from a configuration",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def shard(model, cfg):
    device = torch.device(cfg.device)
    strategy = ShardingStrategy[cfg.strategy]
    return FSDP(model, sharding_strategy=strategy, device_id=device)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import ShardingStrategy, sharding_kwargs


def shard(model, cfg):
    device = torch.device(cfg.device)
    strategy = ShardingStrategy[cfg.strategy]
    return fully_shard(model, **sharding_kwargs(strategy, device_type=device.type))
""",
        support=(
            "ShardingStrategy",
            "sharding_kwargs",
        ),
    ),
    Example(
        title="a run-time strategy with a group",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def shard(model, args, group):
    strategy = ShardingStrategy[args.strategy]
    return FSDP(model, process_group=group, sharding_strategy=strategy)
""",
        after="""\
from fsdp2_support import ShardingStrategy, shard as fsdp2_shard


def shard(model, args, group):
    strategy = ShardingStrategy[args.strategy]
    return fsdp2_shard(model, process_group=group, sharding_strategy=strategy)
""",
        support=(
            "ShardingStrategy",
            "shard",
        ),
    ),
]

KEEP = [
    Keep(
        title="a strategy of another kind",
        source="""\
from trading import ShardingStrategy

strategy = ShardingStrategy[args.strategy]
run(strategy)
""",
    ),
    Keep(
        title="hybrid sharding that FSDP1 would refuse",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

model = FSDP(model, sharding_strategy=ShardingStrategy.HYBRID_SHARD)
""",
        left=True,
    ),
    Keep(
        title="a strategy given to another framework",
        source="""\
from accelerate import FullyShardedDataParallelPlugin
from torch.distributed.fsdp import ShardingStrategy

plugin = FullyShardedDataParallelPlugin(sharding_strategy=ShardingStrategy.FULL_SHARD)
""",
        left=True,
    ),
    Keep(
        title="an enum of the project's own",
        source="""\
from enum import Enum


class ShardingStrategy(Enum):
    FULL_SHARD = 1


strategy = ShardingStrategy.FULL_SHARD
""",
    ),
    Keep(
        title="a mesh of FSDP2 that only replicates",
        source="""\
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

names = ("replicate", "shard")
fully_shard(model, mesh=init_device_mesh("cuda", (dist.get_world_size(), 1), mesh_dim_names=names))
""",
    ),
    Keep(
        title="devices that are counted for something else",
        source="""\
import torch
import torch.distributed as dist

nodes = dist.get_world_size() // torch.cuda.device_count()
""",
    ),
    Keep(
        title="a backend by flag under DDP",
        source="""\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
model = DDP(model)
""",
    ),
    Keep(
        title="FSDP2's own words",
        source="""\
from torch.distributed.fsdp import fully_shard

fully_shard(model, reshard_after_forward=False)
""",
    ),
    Keep(
        title="a strategy of another library",
        source="""\
from lightning.pytorch.strategies import FSDPStrategy

strategy = FSDPStrategy(sharding_strategy="SHARD_GRAD_OP")
""",
    ),
    Keep(
        title="hybrid sharding that nothing says how to divide",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

model = FSDP(model, sharding_strategy=ShardingStrategy.HYBRID_SHARD)
""",
        left=True,
    ),
]


def decide(site: Site, study: Study) -> Decision:
    if site.construct == RULE.handles[0]:
        return strategy.argument(site, study, RULE.code)
    return strategy.reference(site, study, RULE.code)
