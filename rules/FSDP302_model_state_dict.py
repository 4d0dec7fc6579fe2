"""Get a model's state with `get_model_state_dict`.

## What changes
| FSDP1 setting | FSDP2 |
|---|---|
| FULL, `offload_to_cpu` and `rank0_only` | `get_model_state_dict(m, options=StateDictOptions(full_state_dict=True, cpu_offload=True))` |
| FULL, neither, or no context at all | the same without `cpu_offload` |
| FULL, one of the two | a support function |
| SHARDED | `get_model_state_dict(m)` |

## Why
On an FSDP2 model, `model.state_dict()` gives this rank's shards. Saved by rank 0, the file holds a
part of the model, and nothing complains.

## What stays for you
A state dict taken under `if rank == 0`: every rank must take part.

## Since torch
2.6

## References
- torch/distributed/checkpoint/state_dict.py
"""

import ast

from fsdp_migrate import ranks, statedicts
from fsdp_migrate.proposal import Proposal, code
from fsdp_migrate.rule import Example, Keep, Rule
from fsdp_migrate.sharding import DCP
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study

RULE = Rule(
    code="FSDP302",
    name="model_state_dict",
    handles=("FullyShardedDataParallel.state_dict",),
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
]

KEEP = [
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
        title="a state taken by rank 0 alone",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
if rank == 0:
    state = model.state_dict()
""",
        left=True,
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
    models = found.constructors
    setting = statedicts.at(site.node, site.module, models, study)
    at_run_time = bool(setting.problem) and study.run_time_states
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
    guard = ranks.guard(site.node, site.module)
    if guard is not None and setting.kind == "FULL":
        return study.left(
            site,
            RULE.code,
            f"the state is gathered under '{guard}', where not every rank takes part",
            "move get_model_state_dict out of the condition",
            models=models,
            quiet=True,
        )
    if at_run_time:
        message = "kept: the model is set to the state it gives"
        return study.rewritten(site, RULE.code, message, models=models)
    proposal = study.proposal()
    message = _replace(site, setting, proposal)
    review = ""
    if any("DistributedDataParallel" in getattr(v, "made_by", "") for v in found.others):
        review = "the model may also be wrapped by DDP here, whose 'module.' prefix is now removed"
    return study.rewritten(site, RULE.code, message, proposal, models=models, review=review)


def _replace(site: Site, setting: statedicts.Setting, proposal: Proposal) -> str:
    """The call that gives the same state; returns what it is called in reports."""
    assert isinstance(site.node, ast.expr)
    assert site.receiver is not None
    module, near = site.module, site.node
    if setting.kind == "FULL" and setting.offload != setting.rank0_only:
        support = proposal.support(module, "full_model_state", near)
        new = code(
            "{f}({m}, cpu_offload={c}, rank0_only={r})",
            f=support,
            m=site.receiver,
            c=str(setting.offload),
            r=str(setting.rank0_only),
        )
        proposal.replace(module, site.node, new)
        return "full_model_state"
    get = proposal.name(module, DCP, "get_model_state_dict", near)
    flags = ["full_state_dict=True"] if setting.kind == "FULL" else []
    flags += ["cpu_offload=True"] if setting.offload else []
    if flags:
        options = proposal.name(module, DCP, "StateDictOptions", near)
        new = code(
            "{g}({m}, options={o}({f}))",
            g=get,
            m=site.receiver,
            o=options,
            f=", ".join(flags),
        )
    else:
        new = code("{g}({m})", g=get, m=site.receiver)
    proposal.replace(module, site.node, new)
    return f"get_model_state_dict ({setting})"
