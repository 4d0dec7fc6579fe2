"""Scale gradients with `torch.amp.GradScaler`.

## What changes
`ShardedGradScaler(...)` becomes `torch.amp.GradScaler("cuda", ...)` with keyword arguments;
`process_group` is dropped.

## Why
On `DTensor` gradients the plain scaler agrees on overflows across ranks by itself. The two classes
take `backoff_factor` and `growth_factor` in different positions.

## What stays for you
Nothing.

## Since torch
2.6

## References
- torch/distributed/fsdp/sharded_grad_scaler.py
- torch/amp/grad_scaler.py
"""

import ast

from fsdp_migrate import statedicts
from fsdp_migrate.proposal import code, join
from fsdp_migrate.rule import Example, Keep, Rule
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study

RULE = Rule(code="FSDP405", name="grad_scaler", handles=("ShardedGradScaler",))

EXAMPLES = [
    Example(
        title="with its defaults",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

model = FSDP(model)
scaler = ShardedGradScaler()
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
scaler = torch.amp.GradScaler("cuda")
""",
    ),
    Example(
        title="positions that mean something else",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

model = FSDP(model)
scaler = ShardedGradScaler("cuda", 1024.0, 0.5, 2.0)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, backoff_factor=0.5, growth_factor=2.0)
""",
    ),
    Example(
        title="torch is not imported yet",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

model = FSDP(model)
scaler = ShardedGradScaler(enabled=True, process_group=group)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
scaler = torch.amp.GradScaler("cuda", enabled=True)
""",
    ),
]

KEEP = [
    Keep(
        title="torch's own",
        source="""\
import torch

scaler = torch.amp.GradScaler("cuda")
""",
    ),
    Keep(
        title="fairscale's",
        source="""\
from fairscale.optim.grad_scaler import ShardedGradScaler

scaler = ShardedGradScaler()
""",
    ),
    Keep(
        title="without a model",
        source="""\
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

scaler = ShardedGradScaler()
""",
        left=True,
    ),
]

ARGUMENTS = (
    "device",
    "init_scale",
    "backoff_factor",
    "growth_factor",
    "growth_interval",
    "enabled",
    "process_group",
)


def decide(site: Site, study: Study) -> Decision:
    models = study.constructors.values()
    call = site.node
    bound = statedicts.arguments(call, ARGUMENTS) if isinstance(call, ast.Call) else None
    problem = "the arguments of ShardedGradScaler cannot be read" if bound is None else ""
    if not models:
        problem = "no model is wrapped with FSDP in the given paths"
    if problem or bound is None:
        return study.left(site, RULE.code, problem, "use torch.amp.GradScaler", models=models)
    assert isinstance(call, ast.Call)
    proposal = study.proposal()
    torch = proposal.module_name(site.module, "torch", "torch", site.reference)
    device = bound.pop("device", None)
    bound.pop("process_group", None)
    first = code("{d}", d=device) if device is not None else code('"cuda"')
    rest = [code("{n}={v}", n=name, v=value) for name, value in bound.items()]
    new = code("{t}.amp.GradScaler({a})", t=torch, a=join(", ", [first, *rest]))
    proposal.replace(site.module, call, new)
    return study.rewritten(site, RULE.code, "torch.amp.GradScaler", proposal, models=models)
