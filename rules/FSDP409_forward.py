"""Call the model, not its `forward`.

## What changes
`model.forward(x)` becomes `model(x)`. A forward that is only kept to be replaced
(`model.forward = make(model.forward)`) stays: `model(x)` runs FSDP2's hooks around its replacement.

## Why
FSDP1's wrapper gathers parameters in its own `forward`. FSDP2 does it in hooks, which run when the
module is called; its `forward` alone meets sharded parameters and fails (`got mixed torch.Tensor
and DTensor`).

## What stays for you
A forward that is handed to code that is not seen. Other methods than `forward` are FSDP411's.

## Since torch
2.6

## References
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.families.subclasses import derived
from fsdp_migrate.families.wrapping import methods
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(code="FSDP409", name="forward", handles=("FullyShardedDataParallel.forward",))

EXAMPLES = [
    Example(
        title="called by itself",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def step(net, batch):
    model = FSDP(net)
    return model.forward(batch["x"], mask=batch["mask"])
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def step(net, batch):
    model = fully_shard(net)
    return model(batch["x"], mask=batch["mask"])
""",
    ),
    Example(
        title="handed on",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.utils.checkpoint import checkpoint


class Trainer:
    def __init__(self, net):
        self.model = FSDP(net)

    def step(self, x):
        return checkpoint(self.model.forward, x, use_reentrant=False)
""",
        after="""\
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint


class Trainer:
    def __init__(self, net):
        self.model = fully_shard(net)

    def step(self, x):
        return checkpoint(self.model, x, use_reentrant=False)
""",
    ),
    Example(
        title="replaced",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def patch(net, scale):
    model = FSDP(net)
    original = model.forward

    def scaled(x):
        return scale * original(x)

    model.forward = scaled
    return model
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def patch(net, scale):
    model = fully_shard(net)
    original = model.forward

    def scaled(x):
        return scale * original(x)

    model.forward = scaled
    return model
""",
    ),
    Example(
        title="replaced, under mixed precision",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def patch(net, make):
    model = FSDP(net, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
    model.forward = make(model.forward)
    return model
""",
        after="""\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def patch(net, make):
    model = fully_shard(net, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    # TODO(fsdp-migrate FSDP409): Under mixed precision, what replaces forward now gets inputs in param_dtype.
    model.forward = make(model.forward)
    return model
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="kept for later",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def export(net, server):
    model = FSDP(net)
    server.predict = model.forward
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def export(net, server):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP409): What is done with this forward is not seen here. Where it is called, call the model.
    server.predict = model.forward
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="sharded or not",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def step(net, x, sharded):
    if sharded:
        net = FSDP(net)
    return net.forward(x)
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def step(net, x, sharded):
    if sharded:
        net = fully_shard(net)
    return net(x)
""",
    ),
]

KEEP = [
    Keep(
        title="a plain model's forward that is replaced",
        source="""\
def patch(model, make):
    original = model.forward
    model.forward = make(original)
""",
    ),
    Keep(
        title="FSDP2's forward that is replaced",
        source="""\
from torch.distributed.fsdp import fully_shard


def patch(net, make):
    model = fully_shard(net)
    model.forward = make(model.forward)
""",
    ),
    Keep(
        title="a model that is not sharded",
        source="""\
model = Net()
model.forward(x)
""",
    ),
    Keep(
        title="the method of a class above",
        source="""\
class Net(Base):
    def forward(self, x):
        return super().forward(x) + 1
""",
    ),
    Keep(
        title="a signature",
        source="""\
import inspect

inspect.signature(model.forward)
""",
    ),
    Keep(
        title="a method that is replaced",
        source="""\
model.forward = compiled
""",
    ),
]

DESCRIBES = frozenset({"functools.wraps", "functools.update_wrapper"})
RUNS = (".checkpoint", "functools.partial")


def decide(site: Site, study: Study) -> Decision:
    assert site.receiver is not None
    assert isinstance(site.reference, ast.expr)
    models = study.models(site.receiver, site.module).constructors
    outer = site.module.table.parents[site.reference]
    names = study.external(outer.func, site.module) if isinstance(outer, ast.Call) else frozenset()
    if any(name.startswith("inspect.") or name in DESCRIBES for name in names):
        return study.rewritten(site, RULE.code, "kept: it is not called here", models=models)
    if any(derived.defines(c, "__call__", study) for c in models):
        return study.left(
            site,
            RULE.code,
            "the class of this model has a __call__ of its own, around forward",
            "move what forward is given before the call into a method of that class",
            models=models,
            quiet=True,
        )
    runs = site.node is outer or any(name.endswith(RUNS) for name in names)
    if not runs and _is_replaced(site):
        casts = methods.casts_inputs(models, study)
        return study.rewritten(
            site,
            RULE.code,
            "kept: hooks run around what replaces it",
            models=models,
            review=CAST if casts else "",
        )
    if not runs:
        return study.left(
            site,
            RULE.code,
            "what is done with this forward is not seen here",
            "where it is called, call the model",
            models=models,
        )
    proposal = study.proposal()
    proposal.replace(site.module, site.reference, code("{m}", m=site.receiver))
    return study.rewritten(site, RULE.code, "the model itself", proposal, models=models)


CAST = "under mixed precision, what replaces forward now gets inputs in param_dtype"


def _is_replaced(site: Site) -> bool:
    """Whether a forward is only used by what takes its place on the same model."""
    assert site.receiver is not None
    table = site.module.table
    places = [
        statement
        for attribute in table.attributes
        if attribute.attr == "forward" and isinstance(attribute.ctx, ast.Store)
        if access_path(attribute.value) == access_path(site.receiver) is not None
        for statement in [table.statement(attribute)]
        if table.scope_of(statement).function() is table.scope_of(site.node).function()
    ]
    kept = site.statement
    if kept in places:
        return True
    target = kept.targets[0] if isinstance(kept, ast.Assign) else None
    if not places or not isinstance(target, ast.Name) or kept.value is not site.reference:  # type: ignore[attr-defined]
        return False
    scope = table.within[target]
    uses = [
        name
        for name in table.names
        if name.id == target.id
        and isinstance(name.ctx, ast.Load)
        and table.within[name].lookup(name.id) is scope
    ]
    return all(
        table.statement(name) in places or table.within[name].function() is not scope.function()
        for name in uses
    )
