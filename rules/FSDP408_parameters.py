"""Handle parameters that have their whole shape.

## What changes
`p.data = ...` on parameters of a sharded model becomes `p.data.copy_(...)`, in the groups of an
optimizer too. Loops that change parameters in place call `reshard_parameters(model)` first; through
the groups of an optimizer only under NO_SHARD, where FSDP1 saw such changes at once. So do writes to one
parameter (`model.scale.data.fill_(1)`), unless the model has just been made or trained a step. Norms and
sums of gradients that the program adds up over the ranks are taken of `p.grad.to_local()`. Vectors of
parameters or gradients (`parameters_to_vector`, `torch.cat`) are made of this rank's parts. Code that looks at `ndim`, `shape`,
`numel()`, `data_ptr()`, the storage or the deviation of parameters (to leave biases out of weight
decay, say) stays, and is marked; so is code that picks parameters by name where FSDP1 had flat ones.

## Why
FSDP1 showed flat pieces: one dimension, this rank's share of the elements. FSDP2's parameters are
`DTensor`s with the shape they were made with. Assigning to `.data` of one does nothing, without an
error; in-place operations work. After an evaluation the root's parameters are still gathered: plain
tensors, that do not mix with `DTensor`s, and whose changes are lost (as they were in FSDP1). A norm
of a `DTensor` becomes the whole norm as soon as something is computed from it: added up over the
ranks it would be too large.

## What stays for you
Reading the marked places: a split by `ndim` that put every parameter in one group in FSDP1 now
splits. Assignments that change the dtype or the device. An average that is evaluated: FSDP1's next
evaluation missed what was written to the root's parameters since the last, now it is there.

## Since torch
2.6

## References
- torch/distributed/tensor/_api.py
- https://github.com/pytorch/pytorch/issues/144289
"""

import ast

from fsdp_migrate.families.checkpoints import statedicts
from fsdp_migrate.families.parameters import parameters, vectors, writes
from fsdp_migrate.families.parameters.parameters import (
    ADDRESS,
    COUNT,
    MEMORY,
    NAME,
    NUMBER,
    REDUCED,
    SHAPE,
    STALE,
    STATISTIC,
    UPDATE,
    concerned,
    groups_loop,
    model_of,
    reduction,
    trained,
    updated,
    written,
)
from fsdp_migrate.families.parameters.vectors import PIECES, VECTOR, WRITTEN, flattened
from fsdp_migrate.families.parameters.writes import WRITE, is_item, may_be_evaluated, models_of
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Finder, Keep, Rule

RULE = Rule(
    code="FSDP408",
    name="parameters",
    handles=(
        "parameter shape",
        "parameter name",
        "parameter count",
        "parameter address",
        "parameter memory",
        "parameter statistic",
        "parameter data",
        "parameter update",
        "parameter write",
        "parameters in a vector",
        "parameters from a vector",
        "parameters put together",
        "parameter norm over ranks",
        "parameter norm",
    ),
    finders=(
        Finder(60, parameters.find_parameter_uses),
        Finder(70, writes.find_parameter_writes),
        Finder(80, vectors.find_flattened_parameters),
    ),
)

EXAMPLES = [
    Example(
        title="an exponential moving average",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def average(net, twin, decay):
    model = FSDP(net, use_orig_params=True)
    mean = FSDP(twin, use_orig_params=True)
    for e, p in zip(mean.parameters(), model.parameters()):
        e.data = e.data * decay + p.data * (1 - decay)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import reshard_parameters


def average(net, twin, decay):
    model = fully_shard(net)
    mean = fully_shard(twin)
    # TODO(fsdp-migrate FSDP408): After an evaluation of this model, FSDP1 lost what was written to its root's parameters, for no backward had freed them; now the next evaluation sees it.
    reshard_parameters(mean)
    reshard_parameters(model)
    for e, p in zip(mean.parameters(), model.parameters()):
        e.data.copy_(e.data * decay + p.data * (1 - decay))
""",
        outcome=Outcome.REVIEW,
        support=("reshard_parameters",),
    ),
    Example(
        title="changes in place",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def clamp(net, limit):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.no_grad():
        for p in model.parameters():
            p.clamp_(-limit, limit)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import reshard_parameters


def clamp(net, limit):
    model = fully_shard(net)
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.no_grad():
        reshard_parameters(model)
        for p in model.parameters():
            p.clamp_(-limit, limit)
""",
        support=("reshard_parameters",),
    ),
    Example(
        title="one parameter is changed in place",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, net):
        self.model = FSDP(net, use_orig_params=True)

    @torch.no_grad()
    def evaluate(self, batch):
        return self.model(batch)

    def limit(self):
        self.model.head.bias.data.clamp_(-1, 1)
        with torch.no_grad():
            self.model.head.weight.mul_(0.5)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import reshard_parameters


class Trainer:
    def __init__(self, net):
        self.model = fully_shard(net)

    @torch.no_grad()
    def evaluate(self, batch):
        return self.model(batch)

    def limit(self):
        # TODO(fsdp-migrate FSDP408): After an evaluation, FSDP1's forwards did not see what is written here to the root's parameters until a backward had freed them; now the next forward does.
        reshard_parameters(self.model)
        self.model.head.bias.data.clamp_(-1, 1)
        with torch.no_grad():
            self.model.head.weight.mul_(0.5)
""",
        outcome=Outcome.REVIEW,
        support=("reshard_parameters",),
    ),
    Example(
        title="vectors of parameters and gradients",
        before="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.utils import parameters_to_vector


def report(net):
    model = FSDP(net, use_orig_params=True)
    print(parameters_to_vector(model.parameters()).norm().item())
    grads = torch.cat([p.grad.flatten() for p in model.parameters()])
    square = grads.pow(2).sum()
    dist.all_reduce(square)
    return square.sqrt()
""",
        after="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parameters_to_vector

from fsdp2_support import own_part, reshard_parameters


def report(net):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP408): This rank's part has other elements of the parameters than FSDP1's pieces had, and may have another number of them.
    reshard_parameters(model)
    print(parameters_to_vector(map(own_part, model.parameters())).norm().item())
    # TODO(fsdp-migrate FSDP408): This rank's part has other elements of the parameters than FSDP1's pieces had, and may have another number of them.
    grads = torch.cat([own_part(p.grad).flatten() for p in model.parameters()])
    square = grads.pow(2).sum()
    dist.all_reduce(square)
    return square.sqrt()
""",
        outcome=Outcome.REVIEW,
        support=(
            "own_part",
            "reshard_parameters",
        ),
    ),
    Example(
        title="parameters from a vector",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def shrink(net):
    model = FSDP(net, use_orig_params=True)
    vector = parameters_to_vector(model.parameters())
    vector_to_parameters(vector * 0.5, model.parameters())
""",
        after="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def shrink(net):
    model = FSDP(net, use_orig_params=True)
    vector = parameters_to_vector(model.parameters())
    # TODO(fsdp-migrate FSDP408): It assigns to .data, which does nothing to a sharded parameter. Copy its part of the vector to each parameter in place.
    vector_to_parameters(vector * 0.5, model.parameters())
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="weight decay for matrices only",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def optimize(net):
    model = FSDP(net, use_orig_params=True)
    decay = [p for p in model.parameters() if p.ndim >= 2]
    return torch.optim.AdamW(decay)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard


def optimize(net):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP408): FSDP1's parameters were flat pieces here, of one dimension; now ndim and shape are those of the whole parameter.
    decay = [p for p in model.parameters() if p.ndim >= 2]
    return torch.optim.AdamW(decay)
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="a new dtype",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shrink(net):
    model = FSDP(net)
    for p in model.parameters():
        p.data = p.data.half()
""",
        after="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shrink(net):
    model = FSDP(net)
    for p in model.parameters():
        # TODO(fsdp-migrate FSDP408): Assigning to .data of a sharded parameter does nothing. Do it before the model is sharded, or in place.
        p.data = p.data.half()
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="parameters moved to another device",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def offload(net):
    model = FSDP(net)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.device("cpu"))
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import reshard_parameters


def offload(net):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP408): After an evaluation of this model, FSDP1 lost what was written to its root's parameters, for no backward had freed them; now the next evaluation sees it.
    reshard_parameters(model)
    for parameter in model.parameters():
        # TODO(fsdp-migrate FSDP408): Assigning to .data of a sharded parameter does nothing. Do it before the model is sharded, or in place.
        parameter.data = parameter.data.to(torch.device("cpu"))
""",
        outcome=Outcome.LEFT,
        support=("reshard_parameters",),
    ),
    Example(
        title="weight decay by name, where FSDP1 had one flat parameter",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def optimize(net):
    model = FSDP(net)
    decay = [p for n, p in model.named_parameters() if not n.endswith("bias")]
    biases = [p for n, p in model.named_parameters() if n.endswith("bias")]
    return torch.optim.AdamW([{"params": decay}, {"params": biases, "weight_decay": 0.0}])
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard


def optimize(net):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP408): Without use_orig_params=True FSDP1 had one flat parameter a unit here, under a name of its own; now parameters are picked by their names.
    decay = [p for n, p in model.named_parameters() if not n.endswith("bias")]
    # TODO(fsdp-migrate FSDP408): Without use_orig_params=True FSDP1 had one flat parameter a unit here, under a name of its own; now parameters are picked by their names.
    biases = [p for n, p in model.named_parameters() if n.endswith("bias")]
    return torch.optim.AdamW([{"params": decay}, {"params": biases, "weight_decay": 0.0}])
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="parameters are counted",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def report(net):
    model = FSDP(net, use_orig_params=True)
    print(sum(p.numel() for p in model.parameters()))
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def report(net):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP408): FSDP1 counted this rank's part here, now numel() is that of the whole parameter.
    print(sum(p.numel() for p in model.parameters()))
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="parameters are told apart by their memory",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def names(net):
    model = FSDP(net, use_orig_params=True)
    return {p.data.data_ptr(): name for name, p in model.named_parameters()}
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def names(net):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP408): data_ptr() of every sharded parameter is 0: tell parameters apart by id(p).
    return {p.data.data_ptr(): name for name, p in model.named_parameters()}
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="the spread of parameters and gradients",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def report(net, log):
    model = FSDP(net, use_orig_params=True)
    for name, p in model.named_parameters():
        log(name, p.detach().float().std().item(), p.grad.abs().max().item())
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def report(net, log):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP408): FSDP1 gave a number of this rank's piece here, now it is that of the whole parameter, for which all ranks must ask.
    for name, p in model.named_parameters():
        log(name, p.detach().float().std().item(), p.grad.abs().max().item())
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="the memory of parameters",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def held(net):
    model = FSDP(net, use_orig_params=True)
    return sum(p.untyped_storage().nbytes() for p in model.parameters())
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def held(net):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP408): The storage of a sharded parameter has the size of the whole parameter: what this rank holds is that of p.to_local().
    return sum(p.untyped_storage().nbytes() for p in model.parameters())
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="norms that the program adds up over the ranks",
        before="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def norm(model):
    total = torch.zeros(())
    for p in model.parameters():
        if p.grad is not None:
            total += p.grad.detach().norm(2) ** 2
    dist.all_reduce(total)
    return total.sqrt()


def step(net):
    return norm(FSDP(net, use_orig_params=True))
""",
        after="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def norm(model):
    total = torch.zeros(())
    for p in model.parameters():
        if p.grad is not None:
            total += p.grad.to_local().detach().norm(2) ** 2
    dist.all_reduce(total)
    return total.sqrt()


def step(net):
    return norm(fully_shard(net))
""",
    ),
    Example(
        title="parameters that an optimizer of one's own assigns",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Descent(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = p.data - group["lr"] * p.grad


def optimize(net):
    model = FSDP(net, use_orig_params=True)
    return Descent(model.parameters(), {"lr": 0.1})
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard


class Descent(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.copy_(p.data - group["lr"] * p.grad)


def optimize(net):
    model = fully_shard(net)
    return Descent(model.parameters(), {"lr": 0.1})
""",
    ),
    Example(
        title="what an optimizer of a replicated model holds is changed in place",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


class Trainer:
    def __init__(self, net):
        self.model = FSDP(net, sharding_strategy=ShardingStrategy.NO_SHARD)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    @torch.no_grad()
    def decay(self):
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                p.mul_(1 - group["lr"])
""",
        after="""\
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from fsdp2_support import reshard_parameters


class Trainer:
    def __init__(self, net):
        # TODO(fsdp-migrate FSDP201): NO_SHARD became a (world_size, 1) mesh; torch recommends DDP or replicate(), and before 2.10 NCCL may reduce wrongly over the one rank that shards.
        accelerator = torch.accelerator.current_accelerator() or torch.device("cpu")
        mesh = init_device_mesh(
            accelerator.type,
            (torch.distributed.get_world_size(), 1),
            mesh_dim_names=("replicate", "shard"),
        )
        self.model = fully_shard(net, mesh=mesh)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    @torch.no_grad()
    def decay(self):
        reshard_parameters(self.model)
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                p.mul_(1 - group["lr"])
""",
        outcome=Outcome.REVIEW,
        support=("reshard_parameters",),
    ),
    Example(
        title="what an optimizer of a model that may be replicated holds is changed in place",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def train(net, strategy, batches):
    model = FSDP(net, sharding_strategy=ShardingStrategy[strategy])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        model(batch).sum().backward()
        optimizer.step()
        evaluate(model)
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.data.mul_(1 - group["lr"])
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import ShardingStrategy, sharding_kwargs


def train(net, strategy, batches):
    model = fully_shard(net, **sharding_kwargs(ShardingStrategy[strategy]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        model(batch).sum().backward()
        optimizer.step()
        evaluate(model)
        for group in optimizer.param_groups:
            # TODO(fsdp-migrate FSDP408): Under NO_SHARD, FSDP1's next forward saw what is written here after an evaluation; now it does only after a backward or reshard() of the model's units.
            for p in group["params"]:
                p.data.mul_(1 - group["lr"])
""",
        outcome=Outcome.REVIEW,
        support=(
            "ShardingStrategy",
            "sharding_kwargs",
        ),
    ),
    Example(
        title="norms of what an optimizer holds",
        before="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def norms(optimizer):
    found = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            found.append(torch.linalg.vector_norm(p.grad).unsqueeze(0))
    squares = torch.cat(found) ** 2
    dist.all_reduce(squares)
    return squares.sqrt()


def step(net):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
    return norms(optimizer)
""",
        after="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from fsdp2_support import own_part


def norms(optimizer):
    found = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            found.append(torch.linalg.vector_norm(own_part(p.grad)).unsqueeze(0))
    squares = torch.cat(found) ** 2
    dist.all_reduce(squares)
    return squares.sqrt()


def step(net):
    model = fully_shard(net)
    optimizer = torch.optim.AdamW(model.parameters())
    return norms(optimizer)
""",
        support=("own_part",),
    ),
    Example(
        title="norms of one rank",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def largest(net):
    model = FSDP(net, use_orig_params=True)
    norms = [torch.norm(p.grad) for p in model.parameters()]
    return torch.stack(norms).max()
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard


def largest(net):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP408): FSDP1 gave a number of this rank's piece here, now it becomes that of the whole parameter when something is computed from it: add nothing up over the ranks then.
    norms = [torch.norm(p.grad) for p in model.parameters()]
    return torch.stack(norms).max()
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="the largest number over the ranks",
        before="""\
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def largest(net):
    model = FSDP(net, use_orig_params=True)
    for p in model.parameters():
        top = p.grad.abs().max()
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        print(top)
""",
        after="""\
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def largest(net):
    model = fully_shard(net)
    for p in model.parameters():
        # TODO(fsdp-migrate FSDP408): A rank that has no row of a parameter has no largest or smallest number of it, and fails; FSDP1 had no gradient there.
        top = p.grad.to_local().abs().max()
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        print(top)
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="an average whose terms are moved first",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def update(ema, model, beta):
    for p, q in zip(ema.parameters(), model.parameters()):
        p.data = p.data * beta + q.data.clone().to(p.device) * (1 - beta)


def build(net, copy):
    model, ema = FSDP(net), FSDP(copy)
    update(ema, model, 0.9)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import reshard_parameters


def update(ema, model, beta):
    # TODO(fsdp-migrate FSDP408): After an evaluation of this model, FSDP1 lost what was written to its root's parameters, for no backward had freed them; now the next evaluation sees it.
    reshard_parameters(ema)
    reshard_parameters(model)
    for p, q in zip(ema.parameters(), model.parameters()):
        p.data.copy_(p.data * beta + q.data.clone().to(p.device) * (1 - beta))


def build(net, copy):
    model, ema = fully_shard(net), fully_shard(copy)
    update(ema, model, 0.9)
""",
        outcome=Outcome.REVIEW,
        support=("reshard_parameters",),
    ),
]

KEEP = [
    Keep(
        title="items of a parameter",
        source="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(net, use_orig_params=True)
evaluate(model)
model.scale.data[0] = 1.0
""",
        left=True,
    ),
    Keep(
        title="items of a buffer's data, of a plain model",
        source="""\
net.table.data[0] = 1.0
""",
    ),
    Keep(
        title="numbers of a plain model's parameters",
        source="""\
for name, p in model.named_parameters():
    print(name, p.std().item(), p.untyped_storage().nbytes())
""",
    ),
    Keep(
        title="one parameter of a plain model is changed in place",
        source="""\
model.head.bias.data.clamp_(-1, 1)
""",
    ),
    Keep(
        title="vectors of a plain model",
        source="""\
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

vector = parameters_to_vector(model.parameters())
vector_to_parameters(vector * 0.5, model.parameters())
grads = torch.cat([p.grad.flatten() for p in model.parameters()])
""",
    ),
    Keep(
        title="inputs that are put together",
        source="""\
import torch

batch = torch.cat([x.flatten() for x in batches])
""",
    ),
    Keep(
        title="numbers of inputs",
        source="""\
for batch in batches:
    print(batch.std().item(), batch.untyped_storage().nbytes())
""",
    ),
    Keep(
        title="the memory of a plain model's parameters",
        source="""\
names = {p.data_ptr(): name for name, p in model.named_parameters()}
""",
    ),
    Keep(
        title="a model that is not sharded",
        source="""\
import torch

decay = [p for p in model.parameters() if p.ndim >= 2]
for p in model.parameters():
    p.data = p.data * 2
""",
    ),
    Keep(
        title="a model that is sharded with FSDP2",
        source="""\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
decay = [p for p in model.parameters() if p.ndim >= 2]
""",
    ),
    Keep(
        title="parameters that only stop to train",
        source="""\
for p in model.parameters():
    p.requires_grad_(False)
""",
    ),
    Keep(
        title="an average of two models, one of which stays",
        source="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net, other, decay):
    model = FSDP(net)
    twin = FSDP(other, not_an_argument=1)
    with torch.no_grad():
        for p, q in zip(model.parameters(), twin.parameters()):
            q.data = q.data * decay + p.data * (1 - decay)
""",
        left=True,
    ),
    Keep(
        title="the data of something else",
        source="""\
for batch in model.batches():
    batch.data = batch.data * 2
""",
    ),
    Keep(
        title="tensors that are no parameters",
        source="""\
batch.data = batch.data.to(device)
""",
    ),
    Keep(
        title="names of a model that is not sharded",
        source="""\
decay = [p for n, p in model.named_parameters() if not n.endswith("bias")]
""",
    ),
    Keep(
        title="a count of a model that is not sharded",
        source="""\
total = sum(p.numel() for p in model.parameters())
""",
    ),
    Keep(
        title="names of buffers",
        source="""\
tables = [b for n, b in model.named_buffers() if n.endswith("inv_freq")]
""",
    ),
    Keep(
        title="norms of a plain model's gradients",
        source="""\
import torch.distributed as dist

for p in model.parameters():
    total += p.grad.norm(2) ** 2
dist.all_reduce(total)
""",
    ),
    Keep(
        title="an optimizer of a plain model",
        source="""\
import torch


class Descent(torch.optim.Optimizer):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = p.data - group["lr"] * p.grad
""",
    ),
    Keep(
        title="what an optimizer of a model under DDP holds is changed in place",
        source="""\
import torch
from torch.nn.parallel import DistributedDataParallel


def decay(net):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.data.mul_(1 - group["lr"])
""",
    ),
    Keep(
        title="what an optimizer of unknown parameters holds is changed in place",
        source="""\
import torch


@torch.no_grad()
def decay(optimizer):
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.mul_(1 - group["lr"])
""",
    ),
    Keep(
        title="rates of an optimizer's groups",
        source="""\
def decay(optimizer):
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
""",
    ),
    Keep(
        title="the groups of an optimizer of a plain model",
        source="""\
import torch
import torch.distributed as dist

optimizer = torch.optim.AdamW(model.parameters())
for group in optimizer.param_groups:
    for p in group["params"]:
        p.data = p.data * 0.5
        total += p.grad.norm() ** 2
dist.all_reduce(total)
""",
    ),
    Keep(
        title="norms of inputs",
        source="""\
import torch.distributed as dist

for batch in batches:
    total += batch.norm() ** 2
dist.all_reduce(total)
""",
    ),
    Keep(
        title="largest numbers of a plain model",
        source="""\
for p in model.parameters():
    print(p.grad.abs().max())
""",
    ),
]

MEANINGS = {
    SHAPE: (
        "FSDP1's parameters were flat pieces here, of one dimension; now ndim and shape are those "
        "of the whole parameter"
    ),
    NAME: (
        "without use_orig_params=True FSDP1 had one flat parameter a unit here, under a name of its "
        "own; now parameters are picked by their names"
    ),
    COUNT: "FSDP1 counted this rank's part here, now numel() is that of the whole parameter",
    MEMORY: (
        "the storage of a sharded parameter has the size of the whole parameter: what this rank "
        "holds is that of p.to_local()"
    ),
    STATISTIC: (
        "FSDP1 gave a number of this rank's piece here, now it is that of the whole parameter, for "
        "which all ranks must ask"
    ),
    NUMBER: (
        "FSDP1 gave a number of this rank's piece here, now it becomes that of the whole parameter "
        "when something is computed from it: add nothing up over the ranks then"
    ),
    ADDRESS: "data_ptr() of every sharded parameter is 0: tell parameters apart by id(p)",
}
# Calls whose result is not what a parameter is: another dtype, another device.
CASTS = frozenset({"to", "half", "float", "double", "bfloat16", "cpu", "cuda", "type", "type_as"})


def decide(site: Site, study: Study) -> Decision:
    assert site.receiver is not None
    models = concerned(site, study)
    if site.construct == REDUCED:
        return _reduced(site, study)
    if site.construct in MEANINGS:
        message, review = "kept, with another meaning", MEANINGS[site.construct]
        return study.rewritten(site, RULE.code, message, models=models, review=review)
    if site.construct == UPDATE:
        return _update(site, study)
    if site.construct == WRITE:
        return _write(site, study)
    if site.construct in {VECTOR, PIECES}:
        return _vector(site, study)
    if site.construct == WRITTEN:
        return study.left(
            site,
            RULE.code,
            "it assigns to .data, which does nothing to a sharded parameter",
            "copy its part of the vector to each parameter in place",
            models=models,
            quiet=True,
        )
    statement = site.node
    assert isinstance(statement, ast.Assign)
    casts = [node for node in ast.walk(statement.value) if _casts(node)]
    if _casts(statement.value) or not all(map(_moves, casts)):  # copy_ moves what it is given
        return study.left(
            site,
            RULE.code,
            "assigning to .data of a sharded parameter does nothing",
            "do it before the model is sharded, or in place",
            models=models,
            quiet=not all(map(_moves, casts)),  # where it lies does not change what it learns
        )
    proposal = study.proposal()
    new = code("{t}.copy_({v})", t=statement.targets[0], v=statement.value)
    proposal.replace_statement(site.module, statement, new)
    return study.rewritten(site, RULE.code, "copied in place", proposal, models=models)


def _reduced(site: Site, study: Study) -> Decision:
    """The program adds up over the ranks: it must have this rank's number for that."""
    assert site.receiver is not None
    found = study.models(site.receiver, site.module)
    models = concerned(site, study)
    reduced = reduction(site, study)
    traced = study.traced(site.receiver, site.module) and found.certain
    ignores = any(c.is_open or c.has("ignored_modules") or c.has("ignored_states") for c in models)
    proposal = study.proposal()
    for base in reduced.bases:
        gradient = isinstance(base, ast.Attribute) and "grad" in ast.unparse(base)
        if traced and gradient and not ignores:
            proposal.replace(site.module, base, code("{b}.to_local()", b=base))
        else:
            function = proposal.support(site.module, "own_part", base)
            proposal.replace(site.module, base, code("{f}({b})", f=function, b=base))
    review = ""
    if reduced.is_extreme:
        review = EMPTY
    elif reduced.is_mean:
        review = OTHERS
    message = "of this rank's part, which the program adds up"
    return study.rewritten(site, RULE.code, message, proposal, models=models, review=review)


EMPTY = (
    "a rank that has no row of a parameter has no largest or smallest number of it, and fails; "
    "FSDP1 had no gradient there"
)
OTHERS = "this rank's part has other elements of the parameter than FSDP1's piece, and another mean"


def _update(site: Site, study: Study) -> Decision:
    assert isinstance(site.node, ast.expr)
    assert site.receiver is not None
    if not study.traced(site.receiver, site.module):
        return _update_of_optimizer(site, site.receiver, study)
    proposal = study.proposal()
    function = proposal.support(site.module, "reshard_parameters", site.node)
    looped = updated(site.node, study, site.module)
    lines = [code("{f}({m})", f=function, m=model) for model in looped]
    proposal.insert_before(site.module, site.statement, *lines)
    # Parameters of an FSDP1 model and of an FSDP2 model do not mix: all of them or none.
    together = (site.receiver, *looped.values())
    models = frozenset(c for m in together for c in study.models(m, site.module).constructors)
    changed = [study.models(m, site.module).constructors for m in written(site.node, site.module)]
    review = ""
    if any(found and found.isdisjoint(trained(study)) for found in changed):
        review = STALE
    return study.rewritten(
        site, RULE.code, "resharded first", proposal, models=models, review=review
    )


def _write(site: Site, study: Study) -> Decision:
    """One parameter is written to: FSDP2 would lose it after an evaluation, FSDP1 was late."""
    assert isinstance(site.node, ast.expr)
    assert site.receiver is not None
    if any(isinstance(p, ast.Lambda) for p in site.module.table.ancestors(site.node)):
        return study.left(
            site,
            RULE.code,
            "a parameter is written to in a lambda, where the model cannot be resharded first",
            "make it a function",
            models=study.models(site.receiver, site.module).constructors,
            quiet=True,
        )
    changed = study.models(site.receiver, site.module).constructors
    if is_item(site.node, site.module):
        return study.left(
            site,
            RULE.code,
            "items of a sharded parameter cannot be assigned, and of one that an evaluation has "
            "gathered are lost",
            "write to the whole parameter in place, or within full_params of fsdp2_support",
            models=changed,
            quiet=True,
        )
    proposal = study.proposal()
    function = proposal.support(site.module, "reshard_parameters", site.node)
    together = models_of(site, study)
    lines = [code("{f}({m})", f=function, m=path) for path in together]
    proposal.insert_before(site.module, site.statement, *lines)
    models = frozenset(
        c for m in together.values() for c in study.models(m, site.module).constructors
    )
    late = may_be_evaluated(changed, study)
    return study.rewritten(
        site, RULE.code, "resharded first", proposal, models=models, review=LATE if late else ""
    )


LATE = (
    "after an evaluation, FSDP1's forwards did not see what is written here to the root's "
    "parameters until a backward had freed them; now the next forward does"
)


def _vector(site: Site, study: Study) -> Decision:
    """What FSDP1 put into a vector was this rank's: the parts of DTensors are, other parts."""
    given = site.receiver
    assert given is not None
    proposal = study.proposal()
    function = proposal.support(site.module, "own_part", given)
    base = flattened(given) if site.construct == PIECES else None
    if base is not None:
        proposal.replace(site.module, base, code("{f}({b})", f=function, b=base))
    else:
        proposal.replace(site.module, given, code("map({f}, {g})", f=function, g=given))
    if "grad" not in ast.unparse(base or given):  # which are sharded after an evaluation too
        for path in updated(given, study, site.module):
            reshard = proposal.support(site.module, "reshard_parameters", site.node)
            line = code("{f}({m})", f=reshard, m=path)
            proposal.insert_before(site.module, site.statement, line)
    return study.rewritten(
        site,
        RULE.code,
        "of this rank's part",
        proposal,
        models=concerned(site, study),
        review=PARTS,
    )


PARTS = (
    "this rank's part has other elements of the parameters than FSDP1's pieces had, and may have "
    "another number of them"
)


def _update_of_optimizer(site: Site, optimizer: ast.expr, study: Study) -> Decision:
    """Where a model is replicated, FSDP1 computed with the parameters that optimizers have."""
    models = concerned(site, study)
    model = model_of(optimizer, study, site.module)
    if model is None or not statedicts.is_replicated(models, study):
        message = "kept, and not seen in every case"
        return study.rewritten(site, RULE.code, message, models=models, review=UNSEEN)
    proposal = study.proposal()
    function = proposal.support(site.module, "reshard_parameters", site.node)
    line = code("{f}({m})", f=function, m=ast.unparse(model))
    proposal.insert_before(site.module, groups_loop(site), line)
    return study.rewritten(site, RULE.code, "resharded first", proposal, models=models)


UNSEEN = (
    "under NO_SHARD, FSDP1's next forward saw what is written here after an evaluation; now it "
    "does only after a backward or reshard() of the model's units"
)


def _casts(node: ast.AST) -> bool:
    method = node.func if isinstance(node, ast.Call) else None
    return isinstance(method, ast.Attribute) and method.attr in CASTS


def _moves(node: ast.AST) -> bool:
    """Whether a conversion is to a device, as far as it says."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr in {"cpu", "cuda"}:
        return True
    target = node.args[0] if node.func.attr == "to" and node.args else None
    return target is not None and "dev" in ast.unparse(target).lower()
