"""Remove `set_state_dict_type`: FSDP2 chooses at the call.

## What changes
The statement disappears; every state dict call of the model carries its settings itself (FSDP302 to
FSDP305), however far away it stands.

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

from fsdp_migrate import statedicts
from fsdp_migrate.rule import Example, Keep, Rule
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study

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
]

KEEP = [
    Keep(
        title="the previous settings are kept",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
previous = FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
""",
        left=True,
    ),
    Keep(
        title="the settings are asked for",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
print(FSDP.get_state_dict_type(model))
""",
        left=True,
    ),
    Keep(
        title="a model that is set twice",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
state = model.state_dict()
FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
""",
        left=True,
    ),
]


def decide(site: Site, study: Study) -> Decision:
    call = site.node
    model = statedicts.first_argument(call) if isinstance(call, ast.Call) else None
    models = study.models_of_static(model, site.module).constructors
    problem = ""
    if site.construct.endswith("get_state_dict_type"):
        problem = "an FSDP2 model has no state dict type"
    elif not isinstance(call, ast.Call):
        problem = "set_state_dict_type is passed on as a value"
    elif not isinstance(site.statement, ast.Expr) or site.statement.value is not call:
        problem = "the previous settings that it returns are used"
    else:
        setting = statedicts.at(call, site.module, models, study)
        problem = setting.problem
        if setting.kind == "LOCAL":
            problem = "LOCAL_STATE_DICT has no counterpart in FSDP2"
    if problem:
        return study.left(
            site,
            RULE.code,
            problem,
            "choose the StateDictOptions at each state dict call",
            models=models,
            quiet=True,
        )
    proposal = study.proposal()
    proposal.delete(site.module, site.statement)
    return study.rewritten(site, RULE.code, "removed", proposal, models=models)
