"""Free gathered parameters with `reshard()`.

## What changes
`_reshard(module, handle, True)`, a private function of FSDP1, becomes `module.reshard()`. A
condition on FSDP1's private state around it (`module._has_params`, `module.sharding_strategy`) goes.

## Why
FSDP2 has a public method for it, and it does nothing where there is nothing to free.

## What stays for you
Uses of the function in other forms.

## Since torch
2.6

## References
- torch/distributed/fsdp/_fully_shard/_fully_shard.py
"""

import ast

from fsdp_migrate.proposal import code
from fsdp_migrate.rule import Example, Keep, Rule
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study
from fsdp_migrate.trace.flow import access_path

RULE = Rule(code="FSDP407", name="reshard", handles=("private:_runtime_utils._reshard",))

EXAMPLES = [
    Example(
        title="behind a condition",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def free(net):
    model = FSDP(net)
    for m in FSDP.fsdp_modules(model):
        if m._has_params and m.sharding_strategy is not ShardingStrategy.NO_SHARD:
            torch.distributed.fsdp._runtime_utils._reshard(m, m._handle, True)
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, fully_shard


def free(net):
    model = fully_shard(net)
    for m in [m_2 for m_2 in model.modules() if isinstance(m_2, FSDPModule)]:
        m.reshard()
""",
    ),
    Example(
        title="by itself",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp._runtime_utils import _reshard


def free(net):
    model = FSDP(net)
    _reshard(model, model._handle, True)
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def free(net):
    model = fully_shard(net)
    model.reshard()
""",
    ),
    Example(
        title="every unit of a model",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import _runtime_utils


def free(net):
    model = FSDP(net)
    for module in FSDP.fsdp_modules(model):
        if module._handle:
            _runtime_utils._reshard(module, module._handle, free_unsharded_flat_param=True)
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, fully_shard


def free(net):
    model = fully_shard(net)
    for module in [m for m in model.modules() if isinstance(m, FSDPModule)]:
        module.reshard()
""",
    ),
]

KEEP = [
    Keep(
        title="FSDP2's own",
        source="""\
for module in model.modules():
    module.reshard()
""",
    ),
    Keep(
        title="a function of the project's own",
        source="""\
from sharding import _reshard

_reshard(model, handle, True)
""",
    ),
    Keep(
        title="without a model",
        source="""\
from torch.distributed.fsdp._runtime_utils import _reshard


def free(module):
    _reshard(module, module._handle, True)
""",
        left=True,
    ),
]

STATE = frozenset({"_has_params", "sharding_strategy", "_handle", "_handles", "_is_root"})


def decide(site: Site, study: Study) -> Decision:
    call = site.node
    models = study.constructors.values()
    module = call.args[0] if isinstance(call, ast.Call) and call.args else None
    path = access_path(module) if module is not None else None
    alone = isinstance(site.statement, ast.Expr) and site.statement.value is call
    if path is None or not alone or not models:
        return study.left(
            site,
            RULE.code,
            study.no_models or "_reshard is private to FSDP1",
            "call reshard() on the module",
            models=models,
        )
    assert isinstance(call, ast.Call)
    proposal = study.proposal()
    around = _condition(site, path)
    study.gone.add(around.test if around is not None else call)
    study.gone.add(call)
    if around is not None:
        proposal.replace_statement(site.module, around, code("{m}.reshard()", m=path))
    else:
        proposal.replace(site.module, call, code("{m}.reshard()", m=path))
    return study.rewritten(site, RULE.code, "reshard()", proposal, models=models)


def _condition(site: Site, path: str) -> ast.If | None:
    """The ``if`` around the call that only asks for FSDP1's state of the same module."""
    around = site.module.table.parents[site.statement]
    if not isinstance(around, ast.If) or around.orelse or around.body != [site.statement]:
        return None
    asked = [
        node
        for node in ast.walk(around.test)
        if isinstance(node, ast.Attribute) and access_path(node.value) == path
    ]
    names = {n.id for n in ast.walk(around.test) if isinstance(n, ast.Name)}
    private = bool(asked) and all(node.attr in STATE for node in asked)
    return around if private and names <= {path, "ShardingStrategy", "torch"} else None
