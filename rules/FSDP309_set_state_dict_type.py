"""Remove `set_state_dict_type`: FSDP2 chooses at the call.

## What changes
The statement disappears; every state dict call of the model carries its settings itself (FSDP302 to
FSDP305), however far away it stands. Where only the running program knows whether it runs, or with
what, it stays, as a function of the project's own, and state dict calls ask what the model is set to.

## Why
On an FSDP2 model the call quietly does nothing.

## What stays for you
Calls whose return value (the previous settings) is used, `get_state_dict_type`, and models for
which it is called with different settings.

## Since torch
2.6

## References
- torch/distributed/fsdp/fully_sharded_data_parallel.py (`set_state_dict_type`)
"""

import ast
from collections.abc import Iterable

from fsdp_migrate.analysis.values import Made
from fsdp_migrate.families.checkpoints import holders, statedicts
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Constructor, Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(
    code="FSDP309",
    name="set_state_dict_type",
    handles=(
        "FullyShardedDataParallel.set_state_dict_type",
        "FullyShardedDataParallel.get_state_dict_type",
    ),
)

EXAMPLES = [
    Example(
        title="set once, used far away",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


class Trainer:
    def __init__(self, model):
        self.model = FSDP(model)
        FSDP.set_state_dict_type(self.model, StateDictType.SHARDED_STATE_DICT)

    def save(self):
        return {"model": self.model.state_dict()}
""",
        after="""\
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard


class Trainer:
    def __init__(self, model):
        self.model = fully_shard(model)

    def save(self):
        return {"model": get_model_state_dict(self.model)}
""",
    ),
    Example(
        title="with configurations for model and optimizer",
        before="""\
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)


def setup(model, optimizer):
    model = FSDP(model)
    FSDP.set_state_dict_type(
        model,
        StateDictType.FULL_STATE_DICT,
        FullStateDictConfig(rank0_only=True),
        FullOptimStateDictConfig(rank0_only=True),
    )
    return model.state_dict(), FSDP.optim_state_dict(model, optimizer)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import full_model_state, full_optimizer_state


def setup(model, optimizer):
    model = fully_shard(model)
    return full_model_state(
        model, cpu_offload=False, rank0_only=True
    ), full_optimizer_state(model, optimizer, rank0_only=True)
""",
        support=(
            "full_model_state",
            "full_optimizer_state",
        ),
    ),
    Example(
        title="the default, said aloud",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
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
        title="the previous settings are kept",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
previous = FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import StateDictType, set_state_dict_type

model = fully_shard(model)
previous = set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
""",
        support=(
            "StateDictType",
            "set_state_dict_type",
        ),
    ),
    Example(
        title="the settings are asked for",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
print(FSDP.get_state_dict_type(model))
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import get_state_dict_type

model = fully_shard(model)
print(get_state_dict_type(model))
""",
        support=("get_state_dict_type",),
    ),
    Example(
        title="a model that is set twice",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
state = model.state_dict()
FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
""",
        after="""\
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

from fsdp2_support import StateDictType, set_state_dict_type

model = fully_shard(model)
set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
state = get_model_state_dict(model)
set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
""",
        support=(
            "StateDictType",
            "set_state_dict_type",
        ),
    ),
    Example(
        title="under a condition",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def build(net, config):
    model = FSDP(net)
    if config.sharded:
        FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    return model


def state(net, config):
    return build(net, config).state_dict()
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import StateDictType, model_state_dict, set_state_dict_type


def build(net, config):
    model = fully_shard(net)
    if config.sharded:
        set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    return model


def state(net, config):
    return model_state_dict(build(net, config))
""",
        support=(
            "StateDictType",
            "model_state_dict",
            "set_state_dict_type",
        ),
    ),
    Example(
        title="a local type",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def prepare(net):
    model = FSDP(net)
    FSDP.set_state_dict_type(model, StateDictType.LOCAL_STATE_DICT)
    return model
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def prepare(net):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP309): Each rank's state now holds its shard of every parameter: it is saved and loaded as before, but files in FSDP1's LOCAL form do not load.
    return model
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="a model that gets its sharded parts from a dictionary",
        before="""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def build():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    parts = {"0": FSDP(nn.Linear(4, 4))}
    for name, part in parts.items():
        setattr(net, name, part)
    return net


def save(model):
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
    torch.save(model.state_dict(), "net.pt")


save(build())
""",
        after="""\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from fsdp2_support import StateDictType, set_state_dict_type


def build():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    parts = {"0": fully_shard(nn.Linear(4, 4))}
    for name, part in parts.items():
        setattr(net, name, part)
    return net


def save(model):
    set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
    torch.save(model.state_dict(), "net.pt")


save(build())
""",
        support=(
            "StateDictType",
            "set_state_dict_type",
        ),
    ),
    Example(
        title="a model that is sharded in parts",
        before="""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = FSDP(nn.Linear(4, 4))
        self.head = nn.Linear(4, 1)


def save(model):
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
    torch.save(model.state_dict(), "net.pt")


save(Net())
""",
        after="""\
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = fully_shard(nn.Linear(4, 4))
        self.head = nn.Linear(4, 1)


def save(model):
    torch.save(get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True)
    ), "net.pt")


save(Net())
""",
    ),
]

KEEP = [
    Keep(
        title="a model that gets its parts from a dictionary, without FSDP",
        source="""\
import torch
from torch import nn


def build(parts):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    for name, part in parts.items():
        setattr(net, name, part)
    return net


torch.save(build({"0": nn.Linear(4, 4)}).state_dict(), "net.pt")
""",
    ),
    Keep(
        title="under a condition, of a model that FSDP2 shards",
        source="""\
from torch.distributed.fsdp import fully_shard


def build(net, config):
    model = fully_shard(net)
    if config.sharded:
        model.set_state_dict_type("sharded")
    return model
""",
    ),
    Keep(
        title="a model that FSDP2 shards in parts",
        source="""\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = fully_shard(nn.Linear(4, 4))


def save(model):
    torch.save(model.state_dict(), "net.pt")


save(Net())
""",
    ),
    Keep(
        title="a setter of the project's own",
        source="""\
trainer.set_state_dict_type(model, "full")
""",
    ),
    Keep(
        title="fairscale's models choose by method",
        source="""\
from fairscale.nn import FullyShardedDataParallel as FSDP

model = FSDP(model)
state = model.local_state_dict()
""",
    ),
    Keep(
        title="options of DCP",
        source="""\
from torch.distributed.checkpoint.state_dict import StateDictOptions

options = StateDictOptions(full_state_dict=True)
""",
    ),
    Keep(
        title="a type in another library's configuration",
        source="""\
config = {"fsdp_state_dict_type": "FULL_STATE_DICT"}
""",
    ),
    Keep(
        title="a type on its own",
        source="""\
import enum


class StateDictType(enum.Enum):
    FULL_STATE_DICT = "full"


kind = StateDictType.FULL_STATE_DICT
""",
    ),
    Keep(
        title="a type by name",
        source="""\
kinds = ["FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"]
""",
    ),
    Keep(
        title="a setting of another wrapper's",
        source="""\
accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
""",
    ),
]


def decide(site: Site, study: Study) -> Decision:
    call = site.node
    model = statedicts.first_argument(call) if isinstance(call, ast.Call) else None
    models = statedicts.concerned(model, site.module, study)
    problem = ""
    setting = statedicts.Setting()
    if study.run_time_states:
        return _kept(site, study, models)
    if site.construct.endswith("get_state_dict_type"):
        problem = "an FSDP2 model has no state dict type"
    elif not isinstance(call, ast.Call):
        problem = "set_state_dict_type is passed on as a value"
    elif not isinstance(site.statement, ast.Expr) or site.statement.value is not call:
        problem = "the previous settings that it returns are used"
    elif model is not None and _has_parts_alone(model, site, study):
        problem = "only parts of the model are sharded, which gives and takes its state by itself"
    else:
        setting = statedicts.at(call, site.module, models, study)
        problem = setting.problem
    if problem:
        return study.left(
            site,
            RULE.code,
            problem,
            "choose the StateDictOptions at each state dict call",
            models=models,
            quiet=True,
            unknown_state=True,
        )
    proposal = study.proposal()
    proposal.delete(site.module, site.statement)
    review = statedicts.LOCAL if setting.local else ""
    return study.rewritten(site, RULE.code, "removed", proposal, models=models, review=review)


def _has_parts_alone(model: ast.expr, site: Site, study: Study) -> bool:
    """Whether a model is seen to be made, and not to be sharded, nor any part of it that is seen:
    its state dict calls are no sites, and have their setting from here."""
    found = study.models(model, site.module)
    if found or holders.held(model, site.module, study):
        return False
    return bool(found.others) and all(isinstance(v, Made) for v in found.others)


def _kept(site: Site, study: Study, models: Iterable[Constructor]) -> Decision:
    """It stays, as a support function's."""
    proposal = study.proposal()
    function = site.construct.rpartition(".")[2]
    name = proposal.support(site.module, function, site.node)
    assert isinstance(site.reference, ast.expr)
    proposal.replace(site.module, site.reference, code("{n}", n=name))
    study.kept.add(site.node)
    return study.rewritten(site, RULE.code, function, proposal, models=models)
