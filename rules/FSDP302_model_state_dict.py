"""Get a model's state with `get_model_state_dict`.

## What changes
| FSDP1 setting | FSDP2 |
|---|---|
| FULL, `offload_to_cpu` and `rank0_only` | `get_model_state_dict(m, options=StateDictOptions(full_state_dict=True, cpu_offload=True))` |
| FULL, neither, or no context at all | the same without `cpu_offload` |
| FULL, one of the two | a support function |
| FULL, `rank0_only`, of a model that has a group or mesh of its own | the same support function |
| SHARDED | `get_model_state_dict(m)` |
| FULL, of a model that may be DDP's as well | a support function, which leaves DDP's names alone |

A module that is not sharded, and holds parts that are, is asked in the same way; with a support
function where it may have none, and where flags are for the sharded parts alone.

A state that is still used after further training steps, such as the best one so far, is copied:
`full_model_state`, a support function, or a clone of every shard.

## Why
On an FSDP2 model, `model.state_dict()` gives this rank's shards. Saved by rank 0, the file holds a
part of the model, and nothing complains. `get_model_state_dict` hands out the parameters
themselves where nothing needs gathering, FSDP1 gave copies: a best state that is kept in memory
would follow the training.

FSDP1 gave a state to rank 0 of the process group that shards the model, of which there are several
with groups and hybrid strategies. DCP gives it to rank 0 of all ranks: the others would save nothing.
Under NO_SHARD FSDP1 gave the whole state to every rank, and moved it nowhere, whatever was set.

A state that is taken under `if rank == 0` is gathered above the condition, where every rank takes
part (FSDP1 waited for the other ranks forever). Parts of the condition that are the same on every
rank (`step % 100 == 0`) go with it.

## What stays for you
A state taken by a function that is only called under `if rank == 0`, or of a model that is changed
there first.

## Since torch
2.6

## References
- torch/distributed/checkpoint/state_dict.py
"""

import ast
from dataclasses import replace

from fsdp_migrate.families.checkpoints import hoisting, holders, snapshots, statedicts
from fsdp_migrate.families.wrapping import meshes
from fsdp_migrate.fsdp1 import declared
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, Proposal, code
from fsdp_migrate.planning.model import Constructor, Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Finder, Keep, Rule
from fsdp_migrate.planning.shard_plan import DCP

RULE = Rule(
    code="FSDP302",
    name="model_state_dict",
    handles=("FullyShardedDataParallel.state_dict",),
    finders=(Finder(120, holders.find_calls_on_holders),),
)

EXAMPLES = [
    Example(
        title="without a context every rank gets everything",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
state = model.state_dict()
""",
        after="""\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
""",
    ),
    Example(
        title="one of the two flags",
        before="""\
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)

model = FSDP(model)
with FSDP.state_dict_type(
    model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True)
):
    best = model.state_dict()
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import full_model_state

model = fully_shard(model)
best = full_model_state(model, cpu_offload=True, rank0_only=False)
""",
        support=("full_model_state",),
    ),
    Example(
        title="in the middle of an expression",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
checkpoint = {"step": step, "model": model.state_dict()}
""",
        after="""\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
checkpoint = {"step": step, "model": get_model_state_dict(
    model, options=StateDictOptions(full_state_dict=True)
)}
""",
    ),
    Example(
        title="a name that another branch imports",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    return FSDP(net)


def save(net, kind):
    model = build(net)
    if kind == "own":
        return model.state_dict()
    elif kind == "dcp":
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
""",
        after="""\
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions as torch_StateDictOptions,
    get_model_state_dict as torch_get_model_state_dict,
)
from torch.distributed.fsdp import fully_shard


def build(net):
    return fully_shard(net)


def save(net, kind):
    model = build(net)
    if kind == "own":
        return torch_get_model_state_dict(
            model, options=torch_StateDictOptions(full_state_dict=True)
        )
    elif kind == "dcp":
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
""",
    ),
    Example(
        title="saved by rank 0",
        before="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
if dist.get_rank() == 0:
    torch.save(model.state_dict(), "model.pt")
""",
        after="""\
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
state = get_model_state_dict(
    model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
)
if dist.get_rank() == 0:
    torch.save(state, "model.pt")
""",
    ),
    Example(
        title="saved by rank 0 every hundred steps, from a context",
        before="""\
import torch
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)

model = FSDP(model)
whole = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
for step, batch in enumerate(loader):
    train(model, batch)
    if rank == 0 and step % 100 == 0:
        print("saving")
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, whole):
            state = model.state_dict()
        torch.save(state, f"{step}.pt")
""",
        after="""\
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
for step, batch in enumerate(loader):
    train(model, batch)
    if step % 100 == 0:
        state = get_model_state_dict(
            model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
        )
    if rank == 0 and step % 100 == 0:
        print("saving")
        torch.save(state, f"{step}.pt")
""",
    ),
    Example(
        title="behind an early return",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, net):
        self.model = FSDP(net)

    def save(self, path):
        if self.rank != 0:
            return
        torch.save({"model": self.model.state_dict()}, path)
""",
        after="""\
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


class Trainer:
    def __init__(self, net):
        self.model = fully_shard(net)

    def save(self, path):
        state = get_model_state_dict(self.model, options=StateDictOptions(full_state_dict=True))
        if self.rank != 0:
            return
        torch.save({"model": state}, path)
""",
    ),
    Example(
        title="a condition on which ranks may disagree",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
if rank == 0 and loss < best:
    torch.save(model.state_dict(), "best.pt")
""",
        after="""\
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
# TODO(fsdp-migrate FSDP302): The state is gathered whether 'loss < best' holds or not, because every rank must take part and ranks may disagree; ask for it here if it is the same on all of them.
state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
if rank == 0 and loss < best:
    torch.save(state, "best.pt")
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="one call among others is rank 0's",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)


def save(path):
    torch.save(model.state_dict(), path)


save("all.pt")
if rank == 0:
    save("first.pt")
""",
        after="""\
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)


def save(path):
    # TODO(fsdp-migrate FSDP302): One of the calls of this function stands under 'rank == 0': the state is gathered from every rank, so every rank must make the call.
    torch.save(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)), path)


save("all.pt")
if rank == 0:
    save("first.pt")
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="one call among others is rank 0's, of another model",
        before="""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

average = nn.Linear(4, 4)
model = FSDP(model)


def save(model, path):
    torch.save(model.state_dict(), path)


save(model, "model.pt")
if rank == 0:
    save(average, "average.pt")
""",
        after="""\
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

average = nn.Linear(4, 4)
model = fully_shard(model)


def save(model, path):
    torch.save(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)), path)


save(model, "model.pt")
if rank == 0:
    save(average, "average.pt")
""",
    ),
    Example(
        title="the best state so far",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
best = None
for epoch in range(epochs):
    train(model)
    if evaluate(model) > score:
        best = model.state_dict()
model.load_state_dict(best)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import full_model_state, load_full_model

model = fully_shard(model)
best = None
for epoch in range(epochs):
    train(model)
    if evaluate(model) > score:
        best = full_model_state(model, cpu_offload=False, rank0_only=False)
load_full_model(model, best)
""",
        support=(
            "full_model_state",
            "load_full_model",
        ),
    ),
    Example(
        title="of a model that may be DDP's as well",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, sharded):
    model = FSDP(net) if sharded else DDP(net)
    return model.state_dict()
""",
        after="""\
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from fsdp2_support import full_model_state


def train(net, sharded):
    model = fully_shard(net) if sharded else DDP(net)
    return full_model_state(model, cpu_offload=False, rank0_only=False)
""",
        support=("full_model_state",),
    ),
    Example(
        title="told apart from DDP's",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, sharded):
    model = FSDP(net) if sharded else DDP(net)
    if isinstance(model, FSDP):
        return model.state_dict()
    return model.module.state_dict()
""",
        after="""\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, sharded):
    model = fully_shard(net) if sharded else DDP(net)
    if isinstance(model, FSDPModule):
        return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    return model.module.state_dict()
""",
    ),
    Example(
        title="shards that are kept",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


class Trainer:
    def __init__(self, net):
        self.model = FSDP(net)

    def remember(self):
        with FSDP.state_dict_type(self.model, StateDictType.SHARDED_STATE_DICT):
            self.best = self.model.state_dict()
""",
        after="""\
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard


class Trainer:
    def __init__(self, net):
        self.model = fully_shard(net)

    def remember(self):
        self.best = {name: value.clone() for name, value in get_model_state_dict(
            self.model
        ).items()}
""",
    ),
    Example(
        title="settings that change, and a state on rank 0",
        before="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP, StateDictType


def load(model, path):
    state = torch.load(path, map_location="cpu")
    FSDP.set_state_dict_type(
        model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=False)
    )
    model.load_state_dict(state)


def save(model, path):
    FSDP.set_state_dict_type(
        model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)
    )
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)


def train(net):
    model = FSDP(net)
    load(model, "before.pt")
    save(model, "after.pt")
""",
        after="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from fsdp2_support import FullStateDictConfig, StateDictType, set_state_dict_type


def load(model, path):
    state = torch.load(path, map_location="cpu")
    set_state_dict_type(
        model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=False)
    )
    model.load_state_dict(state)


def save(model, path):
    set_state_dict_type(
        model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)
    )
    state = model.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, path)


def train(net):
    model = fully_shard(net)
    load(model, "before.pt")
    save(model, "after.pt")
""",
        support=(
            "FullStateDictConfig",
            "StateDictType",
            "set_state_dict_type",
        ),
    ),
    Example(
        title="for the first rank of every group",
        before="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)


def save(net, group, path):
    model = FSDP(net, process_group=group)
    config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        state = model.state_dict()
    if dist.get_rank(group) == 0:
        torch.save(state, path)
""",
        after="""\
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from fsdp2_support import full_model_state


def save(net, group, path):
    accelerator = torch.accelerator.current_accelerator() or torch.device("cpu")
    mesh = DeviceMesh.from_group(group or dist.group.WORLD, accelerator.type)
    model = fully_shard(net, mesh=mesh)
    state = full_model_state(model, cpu_offload=True, rank0_only=True)
    if dist.get_rank(group) == 0:
        torch.save(state, path)
""",
        support=("full_model_state",),
    ),
    Example(
        title="for the first rank of a mesh that is all of them",
        before="""\
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)

mesh = init_device_mesh("cuda", (dist.get_world_size(),))
model = FSDP(model, device_mesh=mesh)
config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
    state = model.state_dict()
""",
        after="""\
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cuda", (dist.get_world_size(),))
model = fully_shard(model, mesh=mesh)
state = get_model_state_dict(
    model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
)
""",
    ),
    Example(
        title="of a replicated model, which every rank had",
        before="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    ShardingStrategy,
    StateDictType,
)


def save(net, path):
    model = FSDP(net, sharding_strategy=ShardingStrategy.NO_SHARD)
    config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        torch.save(model.state_dict(), f"{path}/{dist.get_rank()}.pt")
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        torch.save(model.state_dict(), f"{path}/{dist.get_rank()}.pt")
""",
        after="""\
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from fsdp2_support import full_model_state


def save(net, path):
    # TODO(fsdp-migrate FSDP201): NO_SHARD became a (world_size, 1) mesh; torch recommends DDP or replicate(), and before 2.10 NCCL may reduce wrongly over the one rank that shards.
    accelerator = torch.accelerator.current_accelerator() or torch.device("cpu")
    mesh = init_device_mesh(
        accelerator.type, (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard")
    )
    model = fully_shard(net, mesh=mesh)
    torch.save(full_model_state(
        model, cpu_offload=False, rank0_only=False
    ), f"{path}/{dist.get_rank()}.pt")
    torch.save(full_model_state(
        model, cpu_offload=False, rank0_only=False
    ), f"{path}/{dist.get_rank()}.pt")
""",
        outcome=Outcome.REVIEW,
        support=("full_model_state",),
    ),
    Example(
        title="for the first rank, under a strategy that is known at run time",
        before="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    ShardingStrategy,
    StateDictType,
)


def save(net, path, strategy):
    model = FSDP(net, sharding_strategy=ShardingStrategy[strategy])
    config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        state = model.state_dict()
    if state:
        torch.save(state, f"{path}/{dist.get_rank()}.pt")
""",
        after="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from fsdp2_support import ShardingStrategy, full_model_state, sharding_kwargs


def save(net, path, strategy):
    model = fully_shard(net, **sharding_kwargs(ShardingStrategy[strategy]))
    state = full_model_state(model, cpu_offload=True, rank0_only=True)
    if state:
        torch.save(state, f"{path}/{dist.get_rank()}.pt")
""",
        support=(
            "ShardingStrategy",
            "full_model_state",
            "sharding_kwargs",
        ),
    ),
    Example(
        title="of a module around sharded parts",
        before="""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = FSDP(nn.Linear(4, 4))
        self.head = nn.Linear(4, 1)


def train():
    net = Net()
    torch.save(net.state_dict(), "net.pt")
    torch.save(net.trunk.state_dict(), "trunk.pt")
    torch.save(net.head.state_dict(), "head.pt")
""",
        after="""\
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = fully_shard(nn.Linear(4, 4))
        self.head = nn.Linear(4, 1)


def train():
    net = Net()
    torch.save(get_model_state_dict(net, options=StateDictOptions(full_state_dict=True)), "net.pt")
    torch.save(get_model_state_dict(
        net.trunk, options=StateDictOptions(full_state_dict=True)
    ), "trunk.pt")
    torch.save(net.head.state_dict(), "head.pt")
""",
    ),
    Example(
        title="of a module around parts that may be sharded, for rank 0",
        before="""\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)


class Net(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(4, 1)


class Trainer:
    def __init__(self, blocks, args):
        self.net = Net(blocks)
        if args.fsdp:
            for index, block in enumerate(self.net.blocks):
                self.net.blocks[index] = FSDP(block)

    def save(self, path):
        torch.save(self.net.state_dict(), f"{path}/{dist.get_rank()}.pt")

    def export(self, path):
        config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        with FSDP.state_dict_type(self.net, StateDictType.FULL_STATE_DICT, config):
            state = self.net.state_dict()
        if dist.get_rank() == 0:
            torch.save(state, path)
""",
        after="""\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from fsdp2_support import full_model_state


class Net(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(4, 1)


class Trainer:
    def __init__(self, blocks, args):
        self.net = Net(blocks)
        if args.fsdp:
            for index, block in enumerate(self.net.blocks):
                self.net.blocks[index] = fully_shard(block)

    def save(self, path):
        torch.save(full_model_state(
            self.net, cpu_offload=False, rank0_only=False
        ), f"{path}/{dist.get_rank()}.pt")

    def export(self, path):
        state = full_model_state(self.net, cpu_offload=True, rank0_only=True)
        if dist.get_rank() == 0:
            torch.save(state, path)
""",
        support=("full_model_state",),
    ),
    Example(
        title="a module around sharded parts, whose method is passed on",
        before="""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(asked):
    net = nn.Sequential(FSDP(nn.Linear(4, 4)), nn.Linear(4, 1))
    asked.append(net.state_dict)
""",
        after="""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(asked):
    net = nn.Sequential(FSDP(nn.Linear(4, 4)), nn.Linear(4, 1))
    # TODO(fsdp-migrate FSDP302): The state_dict method is passed on as a value. Use get_model_state_dict with the StateDictOptions that are meant.
    asked.append(net.state_dict)
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="models that are put into a list or a dict one by one",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self):
        self.models = {}

    def add(self, name, net):
        self.models[name] = FSDP(net)

    def save(self, path):
        torch.save({name: model.state_dict() for name, model in self.models.items()}, path)
""",
        after="""\
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


class Trainer:
    def __init__(self):
        self.models = {}

    def add(self, name, net):
        self.models[name] = fully_shard(net)

    def save(self, path):
        torch.save({name: get_model_state_dict(
            model, options=StateDictOptions(full_state_dict=True)
        ) for name, model in self.models.items()}, path)
""",
    ),
    Example(
        title="a model whose parts are replaced wherever they are found",
        before="""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def shard(module):
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, FSDP(child))
        else:
            shard(child)


def save(path):
    net = Net()
    shard(net)
    torch.save(net.state_dict(), path)
""",
        after="""\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from fsdp2_support import full_model_state


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def shard(module):
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, fully_shard(child))
        else:
            shard(child)


def save(path):
    net = Net()
    shard(net)
    torch.save(full_model_state(net, cpu_offload=False, rank0_only=False), path)
""",
        support=("full_model_state",),
    ),
]

KEEP = [
    Keep(
        title="models that are not sharded, in a dict",
        source="""\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self):
        self.models = {}

    def add(self, name, net):
        self.models[name] = DDP(net)

    def save(self, path):
        torch.save({name: model.state_dict() for name, model in self.models.items()}, path)
""",
    ),
    Keep(
        title="a model whose parts are replaced by what is not sharded",
        source="""\
import torch
from torch import nn


def thaw(module):
    for name, child in module.named_children():
        setattr(module, name, nn.Sequential(child, nn.ReLU()))


def save(net, path):
    thaw(net)
    torch.save(net.state_dict(), path)
""",
    ),
    Keep(
        title="of a model that DDP replicates, for the first rank",
        source="""\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def save(net, path):
    model = DistributedDataParallel(net)
    state = model.module.state_dict() if dist.get_rank() == 0 else {}
    torch.save(state, f"{path}/{dist.get_rank()}.pt")
""",
    ),
    Keep(
        title="of a model that composable replicate() replicates",
        source="""\
import torch
from torch.distributed._composable.replicate import replicate


def save(net, path):
    torch.save(replicate(net).state_dict(), path)
""",
    ),
    Keep(
        title="a module around parts that are not sharded",
        source="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(4, 4)


def train():
    net = Net()
    torch.save(net.state_dict(), "net.pt")
""",
    ),
    Keep(
        title="a module around parts that DDP may wrap",
        source="""\
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, blocks, args):
        self.net = nn.Sequential(*blocks)
        if args.ddp:
            for index, block in enumerate(self.net):
                self.net[index] = DistributedDataParallel(block)

    def save(self, path):
        torch.save(self.net.state_dict(), path)
""",
    ),
    Keep(
        title="the method of a module that is passed on",
        source="""\
def train(net, asked):
    asked.append(net.state_dict)
""",
    ),
    Keep(
        title="a function that only rank 0 calls for the sharded model",
        source="""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

average = nn.Linear(4, 4)
model = FSDP(model)


def save(model, path):
    torch.save(model.state_dict(), path)


save(average, "average.pt")
if rank == 0:
    save(model, "model.pt")
""",
        left=True,
    ),
    Keep(
        title="the state of a model that is DDP's",
        source="""\
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(net)
state = model.state_dict()
""",
    ),
    Keep(
        title="the state of a model that is told from others",
        source="""\
from torch.nn.parallel import DistributedDataParallel as DDP


def state_of(model):
    return model.module.state_dict() if isinstance(model, DDP) else model.state_dict()
""",
    ),
    Keep(
        title="the state of a model that is not wrapped",
        source="""\
def save(teacher):
    return teacher.state_dict()
""",
    ),
    Keep(
        title="an optimizer's state",
        source="""\
import torch

optimizer = torch.optim.AdamW(model.parameters())
state = optimizer.state_dict()
""",
    ),
    Keep(
        title="a function that only rank 0 calls",
        source="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)


def save(path):
    torch.save(model.state_dict(), path)


if rank == 0:
    save("model.pt")
""",
        left=True,
    ),
    Keep(
        title="a function that only rank 0 runs",
        source="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)


@rank_zero_only
def save(path):
    torch.save(model.state_dict(), path)
""",
        left=True,
    ),
    Keep(
        title="a model that is changed by rank 0 first",
        source="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
if rank == 0:
    merge(model)
    torch.save(model.state_dict(), "model.pt")
""",
        left=True,
    ),
    Keep(
        title="models that rank 0 goes through",
        source="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

models = [FSDP(net)]
if rank == 0:
    for model in models:
        torch.save(model.state_dict(), "model.pt")
""",
        left=True,
    ),
    Keep(
        title="a state that rank 0 asks for later",
        source="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
if rank == 0:
    saver.submit(lambda: torch.save(model.state_dict(), "model.pt"))
""",
        left=True,
    ),
    Keep(
        title="states that rank 0 collects",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

student = FSDP(student)
teacher = FSDP(teacher)
if rank == 0:
    states = [model.state_dict() for model in (student, teacher)]
""",
        left=True,
    ),
    Keep(
        title="a state that rank 0 saves, of a model that is not wrapped",
        source="""\
import torch

if rank == 0:
    torch.save(model.state_dict(), "model.pt")
""",
    ),
    Keep(
        title="a state behind an early return, of a model that is not wrapped",
        source="""\
def save(self):
    if self.rank != 0:
        return None
    return self.model.state_dict()
""",
    ),
    Keep(
        title="the best state of a model that is not wrapped",
        source="""\
best = None
for epoch in range(epochs):
    train(model)
    if evaluate(model) > score:
        best = model.state_dict()
""",
    ),
    Keep(
        title="a plain model's state on rank 0, after its settings",
        source="""\
import torch
import torch.distributed as dist


def save(model, path, settings):
    settings.apply(model)
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
""",
    ),
    Keep(
        title="a copy of a plain model's state",
        source="""\
import copy

best = copy.deepcopy(model.state_dict())
""",
    ),
    Keep(
        title="for the first rank of a group, with DDP",
        source="""\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def save(net, group, path):
    model = DistributedDataParallel(net, process_group=group)
    if dist.get_rank(group) == 0:
        torch.save(model.state_dict(), path)
""",
    ),
    Keep(
        title="for the first rank of a mesh, with FSDP2",
        source="""\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

model = fully_shard(model, mesh=mesh)
state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
if mesh.get_local_rank() == 0:
    save(state)
""",
    ),
    Keep(
        title="arguments that change what is asked for",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
state = model.state_dict(keep_vars=True)
""",
        left=True,
    ),
]


def decide(site: Site, study: Study) -> Decision:
    assert site.receiver is not None
    found = study.models(site.receiver, site.module)
    parts = holders.held(site.receiver, site.module, study)
    models = parts.constructors or found.constructors
    setting = statedicts.at(site.node, site.module, models, study)
    setting = statedicts.given(setting, models, study)
    at_run_time = statedicts.is_for_run_time(setting, study)
    problem = "" if at_run_time else setting.problem
    unknown = bool(problem) and problem == setting.problem
    if not isinstance(site.node, ast.Call):
        problem = "the state_dict method is passed on as a value"
    elif site.node.args or site.node.keywords:
        problem = "state_dict() is called with arguments"
    if problem:
        return study.left(
            site,
            RULE.code,
            problem,
            "use get_model_state_dict with the StateDictOptions that are meant",
            models=models,
            quiet=True,
            unknown_state=unknown,
        )
    found_at = hoisting.Standing()
    if setting.kind == "FULL":
        found_at = hoisting.standing(site, (site.receiver,), study)
    if found_at.problem:
        return study.left(
            site,
            RULE.code,
            found_at.problem,
            "call get_model_state_dict on every rank, above the condition",
            models=models,
            quiet=True,
        )
    if at_run_time:
        return _at_run_time(site, found_at, models, study)
    proposal = study.proposal()
    place = found_at.place
    # DCP knows one first rank, FSDP1 one for each group of ranks that shard a model.
    several = setting.rank0_only and not all(meshes.is_sharded_by_all(m, study) for m in models)
    first = place is not None and hoisting.is_saved_by_first(site, place, study)
    if first and setting == statedicts.DEFAULT:
        setting = replace(setting, offload=True, rank0_only=True)
    others = any("DistributedDataParallel" in getattr(v, "made_by", "") for v in found.others)
    others = others or declared.model(frozenset(found.others), study.tracer).other
    # What every rank has is not gathered: DCP would hand out the parameters themselves.
    several = several or others or statedicts.is_replicated(models, study)
    if parts:  # what is not in them is on every rank, and where it is
        several = several or setting.rank0_only or setting.offload or not parts.certain
    if (several and setting.kind == "FULL") or snapshots.is_kept(site, study):
        new, message = _copied(site, setting, proposal, place)
    else:
        new, message = _new(site, setting, proposal, place)
    if place is not None:
        message += f", gathered above '{place.guard}'"
    review, marked = hoisting.put(site, found_at, new, "state", proposal, RULE.code)
    if others and setting.kind != "FULL":
        marked = False
        review = "the model may also be wrapped by DDP here, whose 'module.' prefix is now removed"
    return study.rewritten(
        site, RULE.code, message, proposal, models=models, review=review, marked=marked
    )


def _at_run_time(
    site: Site, found: hoisting.Standing, models: frozenset[Constructor], study: Study
) -> Decision:
    """The model knows which state it gives, once it was set to one."""
    assert site.receiver is not None
    proposal = study.proposal()
    message, review, marked = "kept: the model is set to the state it gives", "", False
    model = hoisting.spelled(site.receiver, found.place)
    new = code("{m}.state_dict()", m=model)
    surely = statedicts.is_surely_set(site.node, site.module, models, study)
    if not surely:
        message = "model_state_dict"
        near = site.node if found.place is None else found.place.statement
        new = code("{f}({m})", f=proposal.support(site.module, message, near), m=model)
    if found.place is not None or not surely:
        review, marked = hoisting.put(site, found, new, "state", proposal, RULE.code)
    if found.place is not None:
        message += f", gathered above '{found.place.guard}'"
    return study.rewritten(
        site, RULE.code, message, proposal, models=models, review=review, marked=marked
    )


def _new(
    site: Site, setting: statedicts.Setting, proposal: Proposal, place: hoisting.Place | None
) -> tuple[Code, str]:
    """The call that gives the same state, and what it is called in reports."""
    assert site.receiver is not None
    module = site.module
    near = site.node if place is None else place.statement
    model = hoisting.spelled(site.receiver, place)
    if setting.kind == "FULL" and setting.offload != setting.rank0_only:
        return _copied(site, setting, proposal, place)
    get = proposal.name(module, DCP, "get_model_state_dict", near)
    flags = ["full_state_dict=True"] if setting.kind == "FULL" else []
    flags += ["cpu_offload=True"] if setting.offload else []
    if flags:
        options = proposal.name(module, DCP, "StateDictOptions", near)
        new = code("{g}({m}, options={o}({f}))", g=get, m=model, o=options, f=", ".join(flags))
    else:
        new = code("{g}({m})", g=get, m=model)
    return new, f"get_model_state_dict ({setting})"


def _copied(
    site: Site, setting: statedicts.Setting, proposal: Proposal, place: hoisting.Place | None
) -> tuple[Code, str]:
    """As :func:`_new`, in tensors that no training changes."""
    assert site.receiver is not None
    if setting.kind != "FULL":
        state, message = _new(site, setting, proposal, place)
        name = proposal.fresh(site.module, site.node, "name", loop=True)
        value = proposal.fresh(site.module, site.node, "value", loop=True)
        template = f"{{{{{name}: {value}.clone() for {name}, {value} in {{s}}.items()}}}}"
        return code(template, s=state), f"copies of {message}"
    near = site.node if place is None else place.statement
    new = code(
        "{f}({m}, cpu_offload={c}, rank0_only={r})",
        f=proposal.support(site.module, "full_model_state", near),
        m=hoisting.spelled(site.receiver, place),
        c=str(setting.offload),
        r=str(setting.rank0_only),
    )
    return new, "full_model_state"
