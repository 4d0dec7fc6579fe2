"""Drop communication hooks that do what is done anyway.

## What changes
`model.register_comm_hook(state, hook)` with torch's `allreduce_hook` or `reduce_scatter_hook` goes.

## Why
These two average gradients as FSDP1 and FSDP2 do without a hook. FSDP2 has no method of that name.

## What stays for you
`bf16_compress_hook` and `fp16_compress_hook`: give every `fully_shard` of the model
`mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)` (or `torch.float16`), which reduces in
that precision as well. Hooks of the project's own: `set_custom_reduce_scatter` (torch 2.9) takes the
place of the reduction, `set_all_reduce_hook` (torch 2.7) runs after it.

## Since torch
2.6

## References
- torch/distributed/algorithms/_comm_hooks/default_hooks.py
- torch/distributed/fsdp/_fully_shard/_fully_shard.py (`set_custom_reduce_scatter`)
"""

import ast

from fsdp_migrate.analysis.values import Made
from fsdp_migrate.families.checkpoints import statedicts
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(
    code="FSDP417",
    name="comm_hook",
    handles=("FullyShardedDataParallel.register_comm_hook",),
)

EXAMPLES = [
    Example(
        title="the reduction that is used anyway",
        before="""\
import torch.distributed as dist
from torch.distributed.algorithms._comm_hooks import default_hooks
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
model.register_comm_hook(
    default_hooks.DefaultState(process_group=dist.new_group()), default_hooks.reduce_scatter_hook
)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
""",
    ),
    Example(
        title="by keyword, with a state that has a name",
        before="""\
import torch.distributed as dist
from torch.distributed.algorithms._comm_hooks.default_hooks import DefaultState, allreduce_hook
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def build(net):
    model = FSDP(net, sharding_strategy=ShardingStrategy.NO_SHARD)
    state = DefaultState(dist.group.WORLD)
    model.register_comm_hook(state=state, hook=allreduce_hook)
    return model
""",
        after="""\
import torch
import torch.distributed as dist
from torch.distributed.algorithms._comm_hooks.default_hooks import DefaultState
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build(net):
    # TODO(fsdp-migrate FSDP201): NO_SHARD became a (world_size, 1) mesh; torch recommends DDP or replicate(), and before 2.10 NCCL may reduce wrongly over the one rank that shards.
    accelerator = torch.accelerator.current_accelerator() or torch.device("cpu")
    mesh = init_device_mesh(
        accelerator.type, (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard")
    )
    model = fully_shard(net, mesh=mesh)
    state = DefaultState(dist.group.WORLD)
    return model
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="a reduction in less precision",
        before="""\
from torch.distributed.algorithms._comm_hooks import default_hooks
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
state = default_hooks.LowPrecisionState(process_group=group)
model.register_comm_hook(state, default_hooks.bf16_compress_hook)
""",
        after="""\
from torch.distributed.algorithms._comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
state = default_hooks.LowPrecisionState(process_group=group)
# TODO(fsdp-migrate FSDP417): FSDP2 reduces in less precision by policy, not by bf16_compress_hook. Give every fully_shard of the model MixedPrecisionPolicy(reduce_dtype=torch.bfloat16) and drop the hook.
model.register_comm_hook(state, default_hooks.bf16_compress_hook)
""",
        outcome=Outcome.LEFT,
    ),
]

KEEP = [
    Keep(
        title="a hook that is chosen elsewhere",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def prepare(model, state, hook):
    FSDP.register_comm_hook(model, state, hook)
""",
        left=True,
    ),
    Keep(
        title="DDP's hook",
        source="""\
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(model)
model.register_comm_hook(state=None, hook=default_hooks.bf16_compress_hook)
""",
    ),
    Keep(
        title="a hook of another object",
        source="""\
engine.register_comm_hook(state, hook)
""",
    ),
    Keep(
        title="a hook of the project's own, for a model that comes from elsewhere",
        source="""\
def prepare(model, hook):
    if hook is not None:
        model.register_comm_hook(None, hook)
""",
    ),
]

HOOKS = "torch.distributed.algorithms._comm_hooks"
DEFAULTS = ("allreduce_hook", "reduce_scatter_hook")
COMPRESSING = {"bf16_compress_hook": "bfloat16", "fp16_compress_hook": "float16"}
WHOLE = ("._get_default_group", ".new_group")
FACTORS = frozenset({"gradient_predivide_factor", "gradient_postdivide_factor"})


def decide(site: Site, study: Study) -> Decision:
    call = site.node
    assert site.receiver is not None
    models = study.models(site.receiver, site.module).constructors
    bound = statedicts.arguments(call, ("state", "hook")) if isinstance(call, ast.Call) else None
    hook, state = (bound or {}).get("hook"), (bound or {}).get("state")
    names = study.external(hook, site.module) if hook is not None else frozenset()
    name = next(iter(names)).rpartition(".")[2] if len(names) == 1 else ""
    ours = all(each.startswith(HOOKS) for each in names)
    statement = site.statement
    alone = isinstance(statement, ast.Expr) and statement.value is call
    if ours and name in DEFAULTS and alone and _averages(state, site, study):
        proposal = study.proposal()
        proposal.delete(site.module, statement)
        message = "gradients are averaged without it"
        return study.rewritten(site, RULE.code, message, proposal, models=models)
    help_ = (
        "use set_custom_reduce_scatter (torch 2.9) for the reduction, or set_all_reduce_hook "
        "(torch 2.7) for what follows it"
    )
    reason = "FSDP2 has no register_comm_hook"
    if ours and name in COMPRESSING:
        reason = f"FSDP2 reduces in less precision by policy, not by {name}"
        help_ = (
            f"give every fully_shard of the model MixedPrecisionPolicy(reduce_dtype=torch."
            f"{COMPRESSING[name]}) and drop the hook"
        )
    return study.left(site, RULE.code, reason, help_, models=models)


def _averages(state: ast.expr | None, site: Site, study: Study) -> bool:
    """Whether a state divides by the number of all ranks, as is done without a hook."""
    if state is None:
        return False
    changed = any(
        node.attr in FACTORS and isinstance(node.ctx, ast.Store)
        for module in study.project.modules
        for node in module.table.attributes
    )
    found = study.values(state, site.module)
    return not changed and all(isinstance(v, Made) and _is_of_all(v, study) for v in found)


def _is_of_all(state: Made, study: Study) -> bool:
    if not state.made_by.startswith(HOOKS) or not state.made_by.endswith(".DefaultState"):
        return False
    assert isinstance(state.node, ast.Call)
    bound = statedicts.arguments(state.node, ("process_group",))
    group = (bound or {}).get("process_group")
    if group is None:
        return False
    if isinstance(group, ast.Call):
        names = study.external(group.func, state.module)
        made = group.args or group.keywords
        return not made and bool(names) and all(name.endswith(WHOLE) for name in names)
    names = study.external(group, state.module)
    return bool(names) and all(name.endswith("group.WORLD") for name in names)
