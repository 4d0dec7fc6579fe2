"""Call the model, not its `forward`.

## What changes
`model.forward(x)` becomes `model(x)`.

## Why
FSDP1's wrapper gathers parameters in its own `forward`. FSDP2 does it in hooks, which run when the
module is called; its `forward` alone meets sharded parameters and fails (`got mixed torch.Tensor
and DTensor`).

## What stays for you
Other methods that compute with parameters (`generate` that calls `self.forward`, `encode`): they
failed in FSDP1, and need `register_fsdp_forward_method` in FSDP2.

## Since torch
2.6

## References
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

import ast

from fsdp_migrate.proposal import code
from fsdp_migrate.rule import Example, Keep, Outcome, Rule
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study

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
        title="kept for later",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def patch(net, make):
    model = FSDP(net)
    original = model.forward
    model.forward = make(original)
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def patch(net, make):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP409): What is done with this forward is not seen here. Where it is called, call the model.
    original = model.forward
    model.forward = make(original)
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
    runs = site.node is outer or any(name.endswith(RUNS) for name in names)
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
