"""Gather whole parameters with `full_params` instead of `summon_full_params`.

## What changes
`FSDP.summon_full_params(model, ...)` becomes `full_params(model, ...)`, a support context manager
with the same flags. `model.apply(fn)`, which FSDP1 ran on whole parameters, is wrapped in it.

## Why
On an FSDP2 model `summon_full_params` silently does nothing: the block sees shards.

Blocks that call the model (`generate`) get `unsharded(model)`: parameters that are gathered for
forwards, in the dtype these compute in.

## What stays for you
Contexts that are handed out, and blocks that call the model on parameters of rank 0 or of the CPU.

## Since torch
2.6

## References
- torch/distributed/fsdp/_unshard_param_utils.py
- torch/distributed/tensor/_api.py
"""

import ast
from collections.abc import Iterable

from fsdp_migrate import statedicts
from fsdp_migrate.proposal import code, join
from fsdp_migrate.rule import Example, Keep, Rule
from fsdp_migrate.sharding import Constructor
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study

RULE = Rule(
    code="FSDP306",
    name="summon_full_params",
    handles=(
        "FullyShardedDataParallel.summon_full_params",
        "FullyShardedDataParallel.apply",
    ),
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
    Example(
        title="one unit's parameters",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def publish(net, send):
    model = FSDP(net)
    for module in FSDP.fsdp_modules(model):
        with FSDP.summon_full_params(module, recurse=False, writeback=False):
            for name, parameter in module.named_parameters():
                send(name, parameter.data)
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, fully_shard

from fsdp2_support import full_params


def publish(net, send):
    model = fully_shard(net)
    for module in [m for m in model.modules() if isinstance(m, FSDPModule)]:
        with full_params(module, recurse=False, writeback=False):
            for name, parameter in module.named_parameters():
                send(name, parameter.data)
""",
        support=("full_params",),
    ),
    Example(
        title="around generation",
        before="""\
import contextlib

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def sample(net, prompts):
    model = FSDP(net)
    context = contextlib.nullcontext()
    if isinstance(model, FSDP):
        context = FSDP.summon_full_params(model, writeback=False, recurse=False)
    with context:
        return model.generate(prompts)
""",
        after="""\
import contextlib

from torch.distributed.fsdp import FSDPModule, fully_shard

from fsdp2_support import unsharded


def sample(net, prompts):
    model = fully_shard(net)
    context = contextlib.nullcontext()
    if isinstance(model, FSDPModule):
        context = unsharded(model, recurse=False)
    with context:
        return model.generate(prompts)
""",
        support=("unsharded",),
    ),
]

KEEP = [
    Keep(
        title="generation in a block that is handed to nobody",
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
    Keep(
        title="another context's argument",
        source="""\
with gathered(model, recurse=False):
    model.generate(prompts)
""",
    ),
    Keep(
        title="a context that is handed out",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def whole(net):
    model = FSDP(net)
    return FSDP.summon_full_params(model)
""",
        left=True,
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
    if bound is None or model is None:
        return _left(site, "the arguments of summon_full_params cannot be read", models, study)
    assert isinstance(call, ast.Call)
    runs = _runs_model(site, study)
    if runs is None:
        return _left(site, "no with statement here enters the context", models, study)
    flags = {
        name: value
        for name, value in bound.items()
        if name != "module" and not (name == "recurse" and _is_true(value, site, study))
    }
    if runs and not flags.keys() <= {"recurse", "writeback"}:
        return _left(site, "the block runs the model, on parameters elsewhere", models, study)
    if runs:
        flags.pop("writeback", None)
    proposal = study.proposal()
    function = "unsharded" if runs else "full_params"
    arguments = [code("{m}", m=model), *(code("{n}={v}", n=n, v=v) for n, v in flags.items())]
    name = proposal.support(site.module, function, call)
    proposal.replace(site.module, call, code("{f}({a})", f=name, a=join(", ", arguments)))
    lowers = runs and any(c.is_open or c.has("mixed_precision") for c in models)
    return study.rewritten(
        site, RULE.code, function, proposal, models=models, review=LOWERED if lowers else ""
    )


LOWERED = "under mixed precision the model runs on parameters in param_dtype here, FSDP1 had fp32"


def _left(site: Site, problem: str, models: Iterable[Constructor], study: Study) -> Decision:
    help = "unshard() and reshard() the FSDP modules around it, or gather what it reads"
    return study.left(site, RULE.code, problem, help, models=models, quiet=True)


def _is_true(node: ast.expr, site: Site, study: Study) -> bool:
    flag = study.literal(node, site.module)
    return flag is not None and flag.value is True


def _runs_model(site: Site, study: Study) -> bool | None:
    """Whether the block calls the model; None when there is no block to be seen."""
    statements = _entered(site)
    if not statements:
        return None
    for statement in statements:
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


def _entered(site: Site) -> list[ast.With | ast.AsyncWith]:
    """The ``with`` statements that enter the context, also under a name or a condition."""
    table = site.module.table
    child: ast.AST = site.node
    for parent in table.ancestors(child):
        if isinstance(parent, ast.withitem):
            statement = table.parents[parent]
            return [statement] if isinstance(statement, (ast.With, ast.AsyncWith)) else []
        if isinstance(parent, ast.IfExp):
            child = parent
        elif isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
            name, scope = parent.targets[0], table.within[parent.targets[0]]
            return [
                statement
                for node in table.names
                if node.id == name.id and table.within[node] is scope
                for item in [table.parents[node]]
                if isinstance(item, ast.withitem) and item.context_expr is node
                for statement in [table.parents[item]]
                if isinstance(statement, (ast.With, ast.AsyncWith))
            ]
        else:
            return []
    return []


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
