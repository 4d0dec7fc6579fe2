"""Scale gradients with `torch.amp.GradScaler`.

## What changes
`ShardedGradScaler(...)` becomes `torch.amp.GradScaler("cuda", ...)` with keyword arguments;
`process_group` is dropped. Where the class is a type, or asked for, `torch.amp.GradScaler` takes its
place.

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

from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code, join
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(
    code="FSDP405",
    name="grad_scaler",
    handles=(
        "ShardedGradScaler",
        "isinstance(ShardedGradScaler)",
        "annotation(ShardedGradScaler)",
    ),
)

EXAMPLES = [
    Example(
        title="asked for",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


def step(net, scaler, optimizer):
    model = FSDP(net)
    model(1).sum().backward()
    if isinstance(scaler, ShardedGradScaler):
        scaler.step(optimizer)
    else:
        optimizer.step()
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard


def step(net, scaler, optimizer):
    model = fully_shard(net)
    model(1).sum().backward()
    # TODO(fsdp-migrate FSDP405): This is true of every GradScaler now, also of one that is for another model.
    if isinstance(scaler, torch.amp.GradScaler):
        scaler.step(optimizer)
    else:
        optimizer.step()
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="as a type",
        before="""\
from typing import Union

import torch
from torch.amp import GradScaler
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


def scaler_for(net, sharded: bool) -> Union[GradScaler, ShardedGradScaler]:
    model = FSDP(net)
    return ShardedGradScaler() if sharded else GradScaler()


def step(loss, scaler: "ShardedGradScaler | None"): ...
""",
        after="""\
from typing import Union

import torch
from torch.amp import GradScaler
from torch.distributed.fsdp import fully_shard


def scaler_for(net, sharded: bool) -> Union[GradScaler, torch.amp.GradScaler]:
    model = fully_shard(net)
    return torch.amp.GradScaler("cuda") if sharded else GradScaler()


def step(loss, scaler: "GradScaler | None"): ...
""",
    ),
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
    Example(
        title="under another name",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

Scaler = ShardedGradScaler


def prepare(net, **kwargs):
    return FSDP(net), ShardedGradScaler(**kwargs)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

Scaler = torch.amp.GradScaler


def prepare(net, **kwargs):
    return fully_shard(net), torch.amp.GradScaler(**kwargs)
""",
    ),
    Example(
        title="the name bound again",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

ShardedGradScaler = ShardedGradScaler


def prepare(net):
    return FSDP(net), ShardedGradScaler()
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

ShardedGradScaler = torch.amp.GradScaler


def prepare(net):
    return fully_shard(net), torch.amp.GradScaler("cuda")
""",
    ),
]

KEEP = [
    Keep(
        title="another scaler asked for",
        source="""\
from torch.amp import GradScaler

scaled = isinstance(scaler, GradScaler)
""",
    ),
    Keep(
        title="types that are torch's own",
        source="""\
from torch.amp import GradScaler


def step(loss, scaler: "GradScaler | None") -> GradScaler | None:
    return scaler
""",
    ),
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
    Keep(
        title="a scaler for one device",
        source="""\
from torch.cuda.amp import GradScaler

scaler = GradScaler(**kwargs)
""",
    ),
    Keep(
        title="a name for a scaler of ones own",
        source="""\
from training.scalers import ShardedGradScaler

ShardedGradScaler = ShardedGradScaler
""",
    ),
]

EVERY = "this is true of every GradScaler now, also of one that is for another model"
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
    if not models:
        return study.left(site, RULE.code, study.no_models, "use torch.amp.GradScaler")
    proposal = study.proposal()
    torch = proposal.module_name(site.module, "torch", "torch", site.reference)
    call = site.node
    if not isinstance(call, ast.Call) or call.func is not site.reference:
        assert isinstance(site.reference, ast.expr)
        proposal.replace(site.module, site.reference, code("{t}.amp.GradScaler", t=torch))
        review = EVERY if site.construct.startswith("isinstance(") else ""
        return study.rewritten(
            site, RULE.code, "torch.amp.GradScaler", proposal, models=models, review=review
        )
    if any(isinstance(a, ast.Starred) for a in call.args):
        problem = "the arguments of ShardedGradScaler cannot be read"
        return study.left(site, RULE.code, problem, "use torch.amp.GradScaler", models=models)
    bound = dict(zip(ARGUMENTS, call.args, strict=False))
    bound |= {k.arg: k.value for k in call.keywords if k.arg is not None}
    further = [code("**{v}", v=k.value) for k in call.keywords if k.arg is None]
    device = bound.pop("device", None)
    bound.pop("process_group", None)
    first = [code("{d}", d=device)] if device is not None else []
    if not first and not further:
        first = [code('"cuda"')]
    rest = [code("{n}={v}", n=name, v=value) for name, value in bound.items()]
    arguments = join(", ", [*first, *rest, *further])
    proposal.replace(site.module, call, code("{t}.amp.GradScaler({a})", t=torch, a=arguments))
    return study.rewritten(site, RULE.code, "torch.amp.GradScaler", proposal, models=models)
