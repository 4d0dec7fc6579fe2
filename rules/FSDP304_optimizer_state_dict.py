"""Get an optimizer's state by parameter name.

## What changes
`FSDP.optim_state_dict` and `FSDP.full_optim_state_dict` become `full_optimizer_state`, a support
function around `get_optimizer_state_dict`; `FSDP.sharded_optim_state_dict`, and `optim_state_dict`
under SHARDED_STATE_DICT, become `get_optimizer_state_dict(model, optimizer)`, behind
`reshard_parameters(model)` unless the model's own state was asked for just before.

## Why
FSDP1's statics look for flat parameters and fail on an FSDP2 model. DCP's getter, asked directly,
fails after an evaluation (the root is still gathered) and takes an optimizer step when the
optimizer has not stepped yet; the support function does neither. The result has FSDP1's layout.

## What stays for you
An explicit `optim_state_dict=` other than the optimizer's own.

## Since torch
2.6

## References
- torch/distributed/checkpoint/state_dict.py (`_init_optim_state`)
"""

import ast

from fsdp_migrate import ranks, statedicts
from fsdp_migrate.proposal import Code, Proposal, code
from fsdp_migrate.rule import Example, Keep, Rule
from fsdp_migrate.sharding import DCP
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study, block_of
from fsdp_migrate.trace.flow import access_path

RULE = Rule(
    code="FSDP304",
    name="optimizer_state_dict",
    handles=(
        "FullyShardedDataParallel.optim_state_dict",
        "FullyShardedDataParallel.full_optim_state_dict",
        "FullyShardedDataParallel.sharded_optim_state_dict",
    ),
)

EXAMPLES = [
    Example(
        title="the whole state on rank 0",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
state = FSDP.full_optim_state_dict(model, optimizer)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import full_optimizer_state

model = fully_shard(model)
state = full_optimizer_state(model, optimizer, rank0_only=True)
""",
        support=("full_optimizer_state",),
    ),
    Example(
        title="as the context says",
        before="""\
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)

model = FSDP(model)
with FSDP.state_dict_type(
    model,
    StateDictType.FULL_STATE_DICT,
    FullStateDictConfig(offload_to_cpu=True, rank0_only=True),
    FullOptimStateDictConfig(offload_to_cpu=False, rank0_only=True),
):
    states = model.state_dict(), FSDP.optim_state_dict(model, optimizer)
""",
        after="""\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

from fsdp2_support import full_optimizer_state

model = fully_shard(model)
states = get_model_state_dict(
    model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
), full_optimizer_state(model, optimizer, rank0_only=True, cpu_offload=False)
""",
        support=("full_optimizer_state",),
    ),
    Example(
        title="sharded",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
state = FSDP.sharded_optim_state_dict(model, optimizer)
""",
        after="""\
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard

from fsdp2_support import reshard_parameters

model = fully_shard(model)
reshard_parameters(model)
state = get_optimizer_state_dict(model, optimizer)
""",
        support=("reshard_parameters",),
    ),
]

KEEP = [
    Keep(
        title="a state that is passed in",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def save(model, optimizer, state):
    return FSDP.optim_state_dict(model, optimizer, state)
""",
        left=True,
    ),
    Keep(
        title="a group of its own",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def save(model, optimizer, group):
    return FSDP.full_optim_state_dict(model, optimizer, group=group)
""",
        left=True,
    ),
    Keep(
        title="a function of the same name",
        source="""\
def full_optim_state_dict(model, optimizer):
    return optimizer.state_dict()


state = full_optim_state_dict(model, optimizer)
""",
    ),
]

ARGUMENTS = {
    "optim_state_dict": ("model", "optim", "optim_state_dict", "group"),
    "full_optim_state_dict": ("model", "optim", "optim_input", "rank0_only", "group"),
    "sharded_optim_state_dict": ("model", "optim", "group"),
}


def decide(site: Site, study: Study) -> Decision:
    name = site.construct.rpartition(".")[2]
    call = site.node
    bound = statedicts.arguments(call, ARGUMENTS[name]) if isinstance(call, ast.Call) else None
    model = bound.get("model") if bound else None
    models = study.models_of_static(model, site.module).constructors
    problem = ""
    if bound is None or "model" not in bound or "optim" not in bound:
        problem = "its arguments cannot be read"
    elif "group" in bound:
        problem = "the state is gathered over a process group of its own"
    elif "optim_state_dict" in bound:
        problem = "an explicit optim_state_dict is passed"
    setting = statedicts.at(site.node, site.module, models, study)
    by_setting = name == "optim_state_dict"
    at_run_time = by_setting and bool(setting.problem) and study.run_time_states
    if by_setting and not problem:
        problem = "" if at_run_time else setting.problem
    unknown = bool(problem) and problem == setting.problem
    rank0 = setting.optim_rank0_only
    if name == "full_optim_state_dict" and bound is not None:
        given = bound.get("rank0_only")
        flag = study.literal(given, site.module) if given is not None else None
        rank0 = True if given is None else bool(flag is not None and flag.value)
        if given is not None and flag is None:
            problem = problem or "rank0_only is only known at run time"
    sharded = name == "sharded_optim_state_dict" or (
        name == "optim_state_dict" and setting.kind == "SHARDED"
    )
    guard = ranks.guard(site.node, site.module)
    if guard is not None and not sharded:
        problem = problem or f"it stands under '{guard}', where not every rank takes part"
    if problem:
        return study.left(
            site,
            RULE.code,
            problem,
            "use get_optimizer_state_dict with the StateDictOptions that are meant",
            models=models,
            unknown_state=unknown,
        )
    assert bound is not None
    assert isinstance(call, ast.Call)
    proposal = study.proposal()
    if at_run_time:
        message = "optim_state_dict"
        get = proposal.support(site.module, message, call)
        new = code("{g}({m}, {o})", g=get, m=bound["model"], o=bound["optim"])
    elif sharded:
        new = _sharded(bound["model"], bound["optim"], site, proposal)
        message = "get_optimizer_state_dict"
    else:
        offload = True if name == "full_optim_state_dict" else setting.optim_offload
        get = proposal.support(site.module, "full_optimizer_state", call)
        flags = ["rank0_only=True"] if rank0 else []
        flags += [] if offload else ["cpu_offload=False"]
        new = code(
            "{g}({m}, {o}{f})",
            g=get,
            m=bound["model"],
            o=bound["optim"],
            f="".join(f", {flag}" for flag in flags),
        )
        message = "full_optimizer_state"
    proposal.replace(site.module, call, new)
    return study.rewritten(site, RULE.code, message, proposal, models=models)


def _sharded(model: ast.expr, optimizer: ast.expr, site: Site, proposal: Proposal) -> Code:
    get = proposal.name(site.module, DCP, "get_optimizer_state_dict", site.node)
    path = access_path(model)
    if path is not None and not _follows_model_state(site, path):
        reshard = proposal.support(site.module, "reshard_parameters", site.node)
        line = code("{f}({m})", f=reshard, m=path)
        proposal.insert_before(site.module, site.statement, line)
    return code("{g}({m}, {o})", g=get, m=model, o=optimizer)


def _follows_model_state(site: Site, path: str) -> bool:
    """Whether the model's own state is asked for shortly before, which reshards its parameters."""
    table = site.module.table
    block = block_of(table.parents[site.statement], site.statement) or [site.statement]
    for statement in block[: block.index(site.statement) + 1]:
        for node in ast.walk(statement):
            method = node.func if isinstance(node, ast.Call) else None
            if isinstance(method, ast.Attribute) and method.attr == "state_dict":
                earlier = site.module.position(method) < site.position
                if earlier and access_path(method.value) == path:
                    return True
    return False
