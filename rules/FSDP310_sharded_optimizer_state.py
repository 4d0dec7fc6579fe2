"""Read a sharded optimizer state into the optimizer's own with DCP.

## What changes
`load_sharded_optimizer_state_dict(...)`, followed by `optim_state_dict_to_load`, becomes
`read_sharded_optimizer_state(model, optimizer, ...)`, a support function on `dcp.load`.

## Why
The function allocates FSDP1's sharded tensors from a model state. FSDP2 reads in place, into the
optimizer state as it is sharded now; checkpoints that FSDP1 wrote load too.

## What stays for you
Calls whose result no `optim_state_dict_to_load` of the same function takes.

## Since torch
2.7

## References
- torch/distributed/checkpoint/optimizer.py
- torch/distributed/checkpoint/state_dict.py
"""

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.families.checkpoints import optimstates, statedicts
from fsdp_migrate.fsdp1.api import FSDP
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(
    code="FSDP310",
    name="sharded_optimizer_state",
    handles=("load_sharded_optimizer_state_dict",),
    since="2.7",
)

EXAMPLES = [
    Example(
        title="a sharded checkpoint",
        before="""\
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def resume(net, optimizer, path):
    model = FSDP(net)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = {"model": model.state_dict()}
        dcp.load(state, checkpoint_id=path)
        model.load_state_dict(state["model"])
        loaded = load_sharded_optimizer_state_dict(
            model_state_dict=state["model"],
            optimizer_key="optim",
            storage_reader=dcp.FileSystemReader(path),
        )
        flat = FSDP.optim_state_dict_to_load(model, optimizer, loaded["optim"])
        optimizer.load_state_dict(flat)
""",
        after="""\
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard

from fsdp2_support import read_sharded_optimizer_state


def resume(net, optimizer, path):
    model = fully_shard(net)
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=path)
    set_model_state_dict(model, state["model"])
    loaded = read_sharded_optimizer_state(model, optimizer, "optim", dcp.FileSystemReader(path))
    set_optimizer_state_dict(model, optimizer, loaded["optim"])
""",
        support=("read_sharded_optimizer_state",),
    ),
    Example(
        title="another key, from another reader",
        before="""\
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def resume(net, optimizer, reader, key):
    model = FSDP(net)
    state = load_sharded_optimizer_state_dict(model.state_dict(), key, reader)[key]
    flat = FSDP.optim_state_dict_to_load(model=model, optim=optimizer, optim_state_dict=state)
    optimizer.load_state_dict(flat)
""",
        after="""\
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

from fsdp2_support import load_full_optimizer, read_sharded_optimizer_state


def resume(net, optimizer, reader, key):
    model = fully_shard(net)
    state = read_sharded_optimizer_state(model, optimizer, key, reader)[key]
    load_full_optimizer(model, optimizer, state)
""",
        support=(
            "load_full_optimizer",
            "read_sharded_optimizer_state",
        ),
    ),
    Example(
        title="attributes",
        before="""\
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, net, optimizer):
        self.model = FSDP(net)
        self.optimizer = optimizer

    def resume(self, reader):
        state = load_sharded_optimizer_state_dict(
            model_state_dict=self.model.state_dict(),
            optimizer_key="optimizer",
            storage_reader=reader,
        )
        flat = FSDP.optim_state_dict_to_load(self.model, self.optimizer, state["optimizer"])
        self.optimizer.load_state_dict(flat)
""",
        after="""\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

from fsdp2_support import load_full_optimizer, read_sharded_optimizer_state


class Trainer:
    def __init__(self, net, optimizer):
        self.model = fully_shard(net)
        self.optimizer = optimizer

    def resume(self, reader):
        state = read_sharded_optimizer_state(self.model, self.optimizer, "optimizer", reader)
        load_full_optimizer(self.model, self.optimizer, state["optimizer"])
""",
        support=(
            "load_full_optimizer",
            "read_sharded_optimizer_state",
        ),
    ),
]

KEEP = [
    Keep(
        title="DCP's own loading",
        source="""\
import torch.distributed.checkpoint as dcp

dcp.load({"model": model.state_dict()}, checkpoint_id=path)
""",
    ),
    Keep(
        title="a function of the project's own",
        source="""\
from checkpoints import load_sharded_optimizer_state_dict

state = load_sharded_optimizer_state_dict(path)
""",
    ),
    Keep(
        title="a state for nobody",
        source="""\
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict


def look(path):
    reader = dcp.FileSystemReader(path)
    return load_sharded_optimizer_state_dict({}, "optim", reader)
""",
        left=True,
    ),
]

ARGUMENTS = ("model_state_dict", "optimizer_key", "storage_reader", "planner")


def decide(site: Site, study: Study) -> Decision:
    call = site.node
    bound = statedicts.arguments(call, ARGUMENTS) if isinstance(call, ast.Call) else None
    load = _following(site, study)
    problem = ""
    if bound is None or bound.keys() != set(ARGUMENTS[:3]):
        problem = "the arguments of load_sharded_optimizer_state_dict cannot be read"
    elif load is None:
        problem = "no optim_state_dict_to_load here says for which model and optimizer this is"
    if problem or bound is None or load is None:
        return study.left(
            site,
            RULE.code,
            problem,
            "dcp.load into get_optimizer_state_dict(model, optimizer), then set it",
            models=study.constructors.values(),
        )
    assert isinstance(call, ast.Call)
    assert load.model is not None
    assert load.optimizer is not None
    proposal = study.proposal()
    name = proposal.support(site.module, "read_sharded_optimizer_state", call)
    new = code(
        "{f}({m}, {o}, {k}, {r})",
        f=name,
        m=ast.unparse(load.model),
        o=ast.unparse(load.optimizer),
        k=bound["optimizer_key"],
        r=bound["storage_reader"],
    )
    proposal.replace(site.module, call, new)
    models = study.models_of_static(load.model, site.module).constructors
    return study.rewritten(site, RULE.code, "read_sharded_optimizer_state", proposal, models=models)


def _following(site: Site, study: Study) -> optimstates.Load | None:
    """The only conversion in the same function, when it names its model and optimizer."""
    function = enclosing_function(site.module, site.node)
    name = "optim_state_dict_to_load"
    loads = [
        optimstates.read(Site(f"{FSDP}.{name}", site.module, call, call.func), name, study)
        for call in site.module.table.calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == name
        and enclosing_function(site.module, call) is function
    ]
    if len(loads) != 1 or loads[0].model is None or loads[0].optimizer is None:
        return None
    named = access_path(loads[0].model) and access_path(loads[0].optimizer)
    return loads[0] if named else None
