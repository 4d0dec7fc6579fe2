"""Materialise a model that only rank 0 has, from rank 0's weights.

## What changes
`param_init_fn=lambda m: m.to_empty(...)` together with `sync_module_states=True` (rank 0 loads the
weights, the others hold a meta or an empty model) becomes two support calls: `take_rank0_state`
before sharding puts the model on the meta device on every rank, `load_rank0_state` after it
materialises the shards and broadcasts weights and buffers. `param_init_fn=None` disappears.

## Why
`fully_shard` on a model that is real on one rank and meta on another hangs at its first collective.
Rewritten as `to_empty` alone, the model would train on uninitialised memory.

## What stays for you
Functions that initialise weights themselves (`reset_parameters`, `nn.init`): they would see shards.

## Since torch
2.6

## References
- torch/distributed/fsdp/_init_utils.py (`_materialize_with_param_init_fn`)
- torch/distributed/checkpoint/state_dict.py
"""

import ast

from fsdp_migrate.analysis.values import Constant, Function, Value
from fsdp_migrate.families.wrapping import placing
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(
    code="FSDP111",
    name="param_init_fn",
    handles=("FullyShardedDataParallel(param_init_fn=)",),
)

EXAMPLES = [
    Example(
        title="rank 0 has the weights, the others hold a meta model",
        before="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model):
    rank = dist.get_rank()
    model = FSDP(
        model,
        device_id=torch.cuda.current_device(),
        sync_module_states=True,
        param_init_fn=(lambda m: m.to_empty(device="cuda", recurse=False)) if rank else None,
    )
    return model
""",
        after="""\
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from fsdp2_support import load_rank0_state, take_rank0_state


def shard(model):
    rank = dist.get_rank()
    # Only rank 0 has the weights: they are taken before sharding, given after it.
    rank0_state = take_rank0_state(model)
    fully_shard(model)
    load_rank0_state(model, rank0_state, "cuda")
    return model
""",
        support=(
            "load_rank0_state",
            "take_rank0_state",
        ),
    ),
    Example(
        title="the same, chosen at run time",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model, config):
    model = FSDP(
        model,
        device_id=torch.cuda.current_device(),
        sync_module_states=config.low_memory,
        param_init_fn=lambda module: module.to_empty(device="cuda", recurse=False)
        if config.low_memory
        else None,
    )
    return model
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import load_rank0_state, take_rank0_state


def shard(model, config):
    sync_module_states = config.low_memory
    # Only rank 0 has the weights: they are taken before sharding, given after it.
    if sync_module_states:
        rank0_state = take_rank0_state(model)
    fully_shard(model)
    if sync_module_states:
        load_rank0_state(model, rank0_state, "cuda")
    return model
""",
        support=(
            "load_rank0_state",
            "take_rank0_state",
        ),
    ),
    Example(
        title="no function at all",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, param_init_fn=None)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
""",
    ),
    Example(
        title="a function that initialises weights itself",
        before="""\
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def init(module):
    module.to_empty(device="cuda", recurse=False)
    nn.init.normal_(module.weight)


model = FSDP(model, param_init_fn=init)
""",
        after="""\
import torch.nn as nn

from fsdp2_support import shard


def init(module):
    module.to_empty(device="cuda", recurse=False)
    nn.init.normal_(module.weight)


model = shard(model, param_init_fn=init)
""",
        support=("shard",),
    ),
    Example(
        title="memory that nothing in the call fills",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, param_init_fn=lambda m: m.to_empty(device="cuda", recurse=False))
""",
        after="""\
from fsdp2_support import shard

model = shard(model, param_init_fn=lambda m: m.to_empty(device="cuda", recurse=False))
""",
        support=("shard",),
    ),
]

KEEP = [
    Keep(
        title="to_empty outside of FSDP",
        source="""\
model = model.to_empty(device="cuda")
""",
    ),
    Keep(
        title="an argument of another function",
        source="""\
model = build(model, param_init_fn=lambda module: module.to_empty(device="cuda"))
""",
    ),
    Keep(
        title="a model that is materialised by hand",
        source="""\
import torch

with torch.device("meta"):
    model = Model()
model.to_empty(device="cuda")
model.reset_parameters()
""",
    ),
    Keep(
        title="FSDP2 on the meta device",
        source="""\
import torch
from torch.distributed.fsdp import fully_shard

with torch.device("meta"):
    model = Model()
fully_shard(model)
model.to_empty(device="cuda")
""",
    ),
    Keep(
        title="fairscale's wrapper",
        source="""\
from fairscale.nn import FullyShardedDataParallel as FSDP

model = FSDP(model, param_init_fn=initialise)
""",
    ),
]


def decide(site: Site, study: Study) -> Decision:
    plan, value, _ = study.argument(site)
    values = study.values(value, site.module)
    real = [v for v in values if not (isinstance(v, Constant) and v.value is None)]
    if not real:
        return study.dropped(site, RULE.code, "dropped, it was None")
    if not all(_only_allocates(v) for v in real):
        return study.left(
            site,
            RULE.code,
            "param_init_fn does more than to_empty, and in FSDP2 it would see shards",
            "shard on the meta device, then to_empty() and initialise",
        )
    sync = plan.constructor.arguments.get("sync_module_states")
    flag = study.literal(sync, site.module) if sync is not None else None
    if sync is None or (flag is not None and not flag.value):
        return study.left(
            site,
            RULE.code,
            "param_init_fn allocates memory that nothing in this call fills",
            "shard on the meta device, then to_empty() and load the weights",
        )
    plan.from_rank0 = True
    take, load = plan.support("take_rank0_state"), plan.support("load_rank0_state")
    state = plan.fresh("rank0_state")
    give = code("{f}({m}, {s}, {d}{o})", f=load, m=plan.model, s=state, **_where(site, study))
    first = code("{s} = {f}({m})", s=state, f=take, m=plan.model)
    comment = "# Only rank 0 has the weights: they are taken before sharding, given after it."
    if flag is not None:
        plan.before.append(code(comment + "\n{c}", c=first))
        plan.after.append(give)
    else:
        assert sync is not None
        condition = plan.sync_condition(sync)
        plan.before.append(code(comment + "\nif {c}:\n    {x}", c=condition, x=first))
        plan.after.append(code("if {c}:\n    {x}", c=condition, x=give))
    return study.rewritten(site, RULE.code, "take_rank0_state, load_rank0_state")


def _only_allocates(value: Value) -> bool:
    """``lambda module: module.to_empty(device=..., recurse=False)``, or a function like it."""
    if not isinstance(value, Function):
        return False
    node = value.node
    body = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
    if len(body) != 1:
        return False
    call = body[0]
    if isinstance(call, (ast.Return, ast.Expr)):
        call = call.value  # type: ignore[assignment]
    if isinstance(call, ast.IfExp):  # to_empty if rank != 0 else None
        branches = [call.body, call.orelse]
        calls = [b for b in branches if isinstance(b, ast.Call)]
        call = calls[0] if len(calls) == 1 else call
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "to_empty"
    )


def _where(site: Site, study: Study) -> dict[str, Code]:
    """The device the shards go to, and whether they stay on the CPU."""
    plan, _, _ = study.argument(site)
    kind = placing.type_code(plan, study)
    flag = code(", cpu_offload={o}", o=plan.offloads) if plan.offloads is not None else code("")
    return {"d": kind, "o": flag}
