"""Load a whole model state into sharded parameters.

## What changes
`model.load_state_dict(state)` becomes `load_full_model(model, state)`, a support function around
`set_model_state_dict(..., StateDictOptions(full_state_dict=True))`; under SHARDED_STATE_DICT it
becomes `set_model_state_dict(model, state)`. A model that is not sharded, such as DDP's in the same
function, takes its state as before.

## Why
Plain tensors do not fit `DTensor` parameters. DCP's own strictness has holes: a missing key goes
unnoticed without broadcast, an unexpected one raises on rank 0 alone. The support function checks
keys and fails on every rank, as `load_state_dict(strict=True)` did.

## What stays for you
`assign=True`, and states in the LOCAL form.

## Since torch
2.6

## References
- torch/distributed/checkpoint/state_dict.py (`_load_model_state_dict`)
"""

import ast

from fsdp_migrate.families.checkpoints import holders, statedicts
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, Rule
from fsdp_migrate.planning.shard_plan import DCP

RULE = Rule(
    code="FSDP303",
    name="load_state_dict",
    handles=("FullyShardedDataParallel.load_state_dict",),
)

EXAMPLES = [
    Example(
        title="a whole state",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
    model.load_state_dict(torch.load("model.pt"), strict=False)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import load_full_model

model = fully_shard(model)
load_full_model(model, torch.load("model.pt"), strict=False)
""",
        support=("load_full_model",),
    ),
    Example(
        title="a sharded one",
        before="""\
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id="checkpoints")
    model.load_state_dict(state["model"])
""",
        after="""\
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
state = {"model": get_model_state_dict(model)}
dcp.load(state, checkpoint_id="checkpoints")
set_model_state_dict(model, state["model"])
""",
    ),
    Example(
        title="the answer is used",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
missing, unexpected = model.load_state_dict(state, strict=False)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import load_full_model

model = fully_shard(model)
missing, unexpected = load_full_model(model, state, strict=False)
""",
        support=("load_full_model",),
    ),
    Example(
        title="parameters that would be replaced",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
model.load_state_dict(state, assign=True)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
# TODO(fsdp-migrate FSDP303): assign=True would leave the optimizer with the old parameters. Use set_model_state_dict with the StateDictOptions that are meant.
model.load_state_dict(state, assign=True)
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="into a module before its parts are sharded",
        before="""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    net.load_state_dict(torch.load("before.pt"), assign=True)
    for index, layer in enumerate(net):
        net[index] = FSDP(layer)
    net.load_state_dict(torch.load("after.pt"))
""",
        after="""\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from fsdp2_support import load_full_model


def train():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    net.load_state_dict(torch.load("before.pt"), assign=True)
    for index, layer in enumerate(net):
        net[index] = fully_shard(layer)
    load_full_model(net, torch.load("after.pt"))
""",
        support=("load_full_model",),
    ),
    Example(
        title="into a module around sharded parts",
        before="""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = FSDP(nn.Linear(4, 4))
        self.head = nn.Linear(4, 1)


def resume(path):
    net = Net()
    net.load_state_dict(torch.load(path))
    net.head.load_state_dict(torch.load("head.pt"))
    return net
""",
        after="""\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from fsdp2_support import load_full_model


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = fully_shard(nn.Linear(4, 4))
        self.head = nn.Linear(4, 1)


def resume(path):
    net = Net()
    load_full_model(net, torch.load(path))
    net.head.load_state_dict(torch.load("head.pt"))
    return net
""",
        support=("load_full_model",),
    ),
    Example(
        title="by a setting that may not have been made",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def resume(net, path, config):
    model = FSDP(net)
    if config.kind:
        FSDP.set_state_dict_type(model, StateDictType[config.kind])
    model.load_state_dict(torch.load(path), strict=False)
    return model
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import StateDictType, load_model_state_dict, set_state_dict_type


def resume(net, path, config):
    model = fully_shard(net)
    if config.kind:
        set_state_dict_type(model, StateDictType[config.kind])
    load_model_state_dict(model, torch.load(path), strict=False)
    return model
""",
        support=(
            "StateDictType",
            "load_model_state_dict",
            "set_state_dict_type",
        ),
    ),
]

KEEP = [
    Keep(
        title="strictness that is a setting",
        source="""\
import torch

model.load_state_dict(torch.load(path), strict=config.strict)
""",
    ),
    Keep(
        title="into a module whose parts are replaced by others",
        source="""\
import torch
from torch import nn


def train():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    for index, layer in enumerate(net):
        net[index] = nn.Sequential(layer, nn.ReLU())
    net.load_state_dict(torch.load("after.pt"))
""",
    ),
    Keep(
        title="into a module around parts that are not sharded",
        source="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(4, 4)


def resume(path):
    net = Net()
    net.load_state_dict(torch.load(path))
    return net
""",
    ),
    Keep(
        title="weights that are loaded before wrapping",
        source="""\
import torch

model.load_state_dict(torch.load("model.pt"))
""",
    ),
    Keep(
        title="a state that FSDP2 loads",
        source="""\
from torch.distributed.checkpoint.state_dict import set_model_state_dict

set_model_state_dict(model, state)
""",
    ),
    Keep(
        title="a flat state",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def load(model, state):
    # No model is wrapped in these paths: nothing here is touched.
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        model.load_state_dict(state)
""",
        left=True,
    ),
    Keep(
        title="a scheduler's state",
        source="""\
scheduler.load_state_dict(state["scheduler"])
""",
    ),
]


def decide(site: Site, study: Study) -> Decision:
    assert site.receiver is not None
    parts = holders.held(site.receiver, site.module, study)
    models = parts.constructors or study.models(site.receiver, site.module).constructors
    setting = statedicts.at(site.node, site.module, models, study)
    setting = statedicts.given(setting, models, study)
    at_run_time = statedicts.is_for_run_time(setting, study)
    problem = "" if at_run_time else setting.problem
    unknown = bool(problem) and problem == setting.problem
    call = site.node
    bound = None
    if isinstance(call, ast.Call):
        bound = statedicts.arguments(call, ("state_dict", "strict", "assign"))
    if bound is None or "state_dict" not in bound:
        problem = "its arguments cannot be read"
    elif "assign" in bound:
        problem = "assign=True would leave the optimizer with the old parameters"
    if problem:
        return study.left(
            site,
            RULE.code,
            problem,
            "use set_model_state_dict with the StateDictOptions that are meant",
            models=models,
            unknown_state=unknown,
        )
    assert bound is not None
    assert isinstance(call, ast.Call)
    surely = statedicts.is_surely_set(call, site.module, models, study)
    if at_run_time and surely:
        message = "kept: the model is set to the state it takes"
        return study.rewritten(site, RULE.code, message, models=models)
    proposal = study.proposal()
    strict = [code(", strict={s}", s=bound["strict"])] if "strict" in bound else [code("")]
    if at_run_time or setting.kind == "FULL":
        message = "load_model_state_dict" if at_run_time else "load_full_model"
        name = proposal.support(site.module, message, call)
        new = code("{f}({m}, {s}{k})", f=name, m=site.receiver, s=bound["state_dict"], k=strict[0])
    else:
        name = proposal.name(site.module, DCP, "set_model_state_dict", call)
        if "strict" in bound:
            options = proposal.name(site.module, DCP, "StateDictOptions", call)
            strict = [code(", options={o}(strict={s})", o=options, s=bound["strict"])]
        new = code("{f}({m}, {s}{k})", f=name, m=site.receiver, s=bound["state_dict"], k=strict[0])
        message = "set_model_state_dict"
    proposal.replace(site.module, call, new)
    return study.rewritten(site, RULE.code, message, proposal, models=models)
