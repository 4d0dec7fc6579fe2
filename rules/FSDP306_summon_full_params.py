"""Gather whole parameters with `full_params` instead of `summon_full_params`.

## What changes
`FSDP.summon_full_params(model, ...)` becomes `full_params(model, ...)`, a support context manager
with the same flags. `model.apply(fn)`, which FSDP1 ran on whole parameters, is wrapped in it.

## Why
On an FSDP2 model `summon_full_params` silently does nothing: the block sees shards.

## What stays for you
Blocks that call the model (`generate`), and `recurse=False`.

## Since torch
2.7 (`distribute_tensor(src_data_rank=None)`)

## References
- torch/distributed/fsdp/_unshard_param_utils.py
- torch/distributed/tensor/_api.py
"""

import ast

from fsdp_migrate import statedicts
from fsdp_migrate.proposal import code, join
from fsdp_migrate.rule import Example, Keep, Rule
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study

RULE = Rule(
    code="FSDP306",
    name="summon_full_params",
    handles=(
        "FullyShardedDataParallel.summon_full_params",
        "FullyShardedDataParallel.apply",
    ),
    since="2.7",
)

EXAMPLES = [
    Example(
        title="to read",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
with FSDP.summon_full_params(model, writeback=False):
    print(model.weight.norm())
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import full_params

model = fully_shard(model)
with full_params(model, writeback=False):
    print(model.weight.norm())
""",
        support=("full_params",),
    ),
    Example(
        title="to write",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
with torch.no_grad(), FSDP.summon_full_params(model, recurse=True):
    model.weight.mul_(0.5)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import full_params

model = fully_shard(model)
with torch.no_grad(), full_params(model):
    model.weight.mul_(0.5)
""",
        support=("full_params",),
    ),
    Example(
        title="apply, which gathered by itself",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
model.apply(init)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import full_params

model = fully_shard(model)
with full_params(model):
    model.apply(init)
""",
        support=("full_params",),
    ),
]

KEEP = [
    Keep(
        title="around generation",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def sample(model, batch):
    with FSDP.summon_full_params(model, recurse=False):
        return model.generate(**batch)
""",
        left=True,
    ),
    Keep(
        title="one unit only",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def weight(model):
    with FSDP.summon_full_params(model, recurse=False):
        return model.weight.clone()
""",
        left=True,
    ),
    Keep(
        title="apply before wrapping",
        source="""\
model.apply(init)
""",
    ),
]

ARGUMENTS = ("module", "recurse", "writeback", "rank0_only", "offload_to_cpu", "with_grads")
CALLS = frozenset({"generate", "forward", "__call__"})


def decide(site: Site, study: Study) -> Decision:
    if site.construct.endswith(".apply"):
        return _apply(site, study)
    call = site.node
    bound = statedicts.arguments(call, ARGUMENTS) if isinstance(call, ast.Call) else None
    model = bound.get("module") if bound else None
    models = study.models_of_static(model, site.module).constructors
    problem = ""
    if bound is None or model is None:
        problem = "the arguments of summon_full_params cannot be read"
    elif "recurse" in bound:
        flag = study.literal(bound["recurse"], site.module)
        if flag is None or not flag.value:
            problem = "recurse=False gathers one unit only"
    if not problem and model is not None and _runs_model(site, model, study):
        problem = "the block runs the model, which full_params does not allow"
    if problem or bound is None or model is None:
        return study.left(
            site,
            RULE.code,
            problem,
            "unshard() and reshard() the FSDP modules around it, or gather what it reads",
            models=models,
            quiet=True,
        )
    assert isinstance(call, ast.Call)
    proposal = study.proposal()
    name = proposal.support(site.module, "full_params", call)
    flags = [
        code("{n}={v}", n=key, v=value)
        for key, value in bound.items()
        if key not in {"module", "recurse"}
    ]
    new = code("{f}({a})", f=name, a=join(", ", [code("{m}", m=model), *flags]))
    proposal.replace(site.module, call, new)
    return study.rewritten(site, RULE.code, "full_params", proposal, models=models)


def _runs_model(site: Site, model: ast.expr, study: Study) -> bool:
    """Whether the body of the ``with`` calls the model."""
    item = site.module.table.parents[site.node]
    if not isinstance(item, ast.withitem):
        return True
    statement = site.module.table.parents[item]
    assert isinstance(statement, (ast.With, ast.AsyncWith))
    for body in statement.body:
        for node in ast.walk(body):
            if not isinstance(node, ast.Call):
                continue
            called = node.func
            if isinstance(called, ast.Attribute) and called.attr in CALLS:
                return True
            if study.models(called, site.module):
                return True
    return False


def _apply(site: Site, study: Study) -> Decision:
    assert site.receiver is not None
    models = study.models(site.receiver, site.module).constructors
    statement = site.statement
    alone = isinstance(statement, ast.Expr) and statement.value is site.node
    if not alone or not isinstance(site.node, ast.Call):
        return study.left(
            site,
            RULE.code,
            "apply() ran on whole parameters in FSDP1 and runs on shards in FSDP2",
            "initialise before sharding, or gather the parameters around it",
            models=models,
            quiet=True,
        )
    proposal = study.proposal()
    name = proposal.support(site.module, "full_params", site.node)
    new = code("with {f}({m}):\n    {c}", f=name, m=ast.unparse(site.receiver), c=site.node)
    proposal.replace_statement(site.module, statement, new)
    return study.rewritten(site, RULE.code, "apply under full_params", proposal, models=models)
