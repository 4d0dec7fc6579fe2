"""Recognise sharded models as `FSDPModule`.

## What changes
`isinstance(m, FullyShardedDataParallel)` becomes `isinstance(m, FSDPModule)`; annotations change
alike. So does `hasattr(m, "clip_grad_norm_")` (or `"no_sync"`), where it tells FSDP1 models. Where
`isinstance(m, FSDPModule)` is asked beside it, the branch for FSDP1 goes; if that is a function which
answers with the version of FSDP, so does what is done for FSDP1's version.

## Why
After `fully_shard`, a model's class is a subclass of its own class and of `FSDPModule`. The old
test is false, so code quietly takes the other branch.

## What stays for you
Checks in projects that wrap their models elsewhere.

## Since torch
2.6

## References
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

import ast
from dataclasses import replace

from fsdp_migrate.branches import VERSION, Branch
from fsdp_migrate.fsdp1 import FSDP, PACKAGE
from fsdp_migrate.proposal import code
from fsdp_migrate.rule import Example, Keep, Outcome, Rule
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study, sentences

RULE = Rule(
    code="FSDP404",
    name="isinstance",
    handles=(
        "isinstance(FullyShardedDataParallel)",
        "annotation(FullyShardedDataParallel)",
        "compared(FullyShardedDataParallel)",
        "hasattr(FullyShardedDataParallel)",
        "version",
        "annotation(MixedPrecision)",
        "annotation(CPUOffload)",
    ),
)

EXAMPLES = [
    Example(
        title="a check",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
if isinstance(model, FSDP):
    print("sharded")
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, fully_shard

model = fully_shard(model)
if isinstance(model, FSDPModule):
    print("sharded")
""",
    ),
    Example(
        title="a check among others",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

model = FSDP(model)
wrapped = isinstance(model, (DDP, FSDP))
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

model = fully_shard(model)
wrapped = isinstance(model, (DDP, FSDPModule))
""",
    ),
    Example(
        title="annotations",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def shard(model) -> FSDP:
    return FSDP(model)


def step(model: FSDP, precision: MixedPrecision | None) -> None:
    model(precision)
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard


def shard(model) -> FSDPModule:
    return fully_shard(model)


def step(model: FSDPModule, precision: MixedPrecisionPolicy | None) -> None:
    model(precision)
""",
    ),
    Example(
        title="a function that answers with the version of FSDP",
        before="""\
import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP


def fsdp_version(model):
    if isinstance(model, FSDP):
        return 1
    elif FSDPModule is not None and isinstance(model, FSDPModule):
        return 2
    else:
        return 0


def offload(model):
    if fsdp_version(model) == 2:
        model.cpu()
        return
    assert isinstance(model, FSDP)
    for handle in model._all_handles:
        handle.flat_param_to(torch.device("cpu"))


def main(net, world_size):
    model = FSDP(net)
    if world_size > 1 and fsdp_version(model) == 1:
        model._handle.reshard(True)
    if fsdp_version(model) == 1:
        norm = model.clip_grad_norm_(1.0)
    else:
        norm = clip_sharded(model, 1.0)
    offload(model)
    return norm
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, fully_shard


def fsdp_version(model):
    # TODO(fsdp-migrate FSDP404): Models that were FSDP1 take the branch for FSDP2 now: see that it does all they need.
    if FSDPModule is not None and isinstance(model, FSDPModule):
        return 2
    else:
        return 0


def offload(model):
    if fsdp_version(model) == 2:
        model.cpu()
        return
    assert isinstance(model, FSDPModule)


def main(net, world_size):
    model = fully_shard(net)
    norm = clip_sharded(model, 1.0)
    offload(model)
    return norm
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="a branch for FSDP1 beside one for FSDP2",
        before="""\
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP


def shard(net):
    return FSDP(net)


def version(model):
    if isinstance(model, FSDP):
        return 1
    elif isinstance(model, FSDPModule):
        return 2
    return 0


def clip(model, limit):
    # FSDP2 first
    if isinstance(model, FSDPModule):
        norm = clip_sharded(model.parameters(), limit)
    elif isinstance(model, FSDP):
        norm = model.clip_grad_norm_(limit)
    else:
        norm = clip_plain(model.parameters(), limit)
    return norm
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, fully_shard


def shard(net):
    return fully_shard(net)


def version(model):
    # TODO(fsdp-migrate FSDP404): Models that were FSDP1 take the branch for FSDP2 now: see that it does all they need.
    if isinstance(model, FSDPModule):
        return 2
    return 0


def clip(model, limit):
    # FSDP2 first
    # TODO(fsdp-migrate FSDP404): Models that were FSDP1 take the branch for FSDP2 now: see that it does all they need.
    if isinstance(model, FSDPModule):
        norm = clip_sharded(model.parameters(), limit)
    else:
        norm = clip_plain(model.parameters(), limit)
    return norm
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="the class itself",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def is_wrapped(net):
    model = FSDP(net)
    return type(model) == FSDP, type(net) is not FSDP
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, fully_shard


def is_wrapped(net):
    model = fully_shard(net)
    return isinstance(model, FSDPModule), not isinstance(net, FSDPModule)
""",
    ),
    Example(
        title="a model that has FSDP's methods",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def clip(net, optimizer):
    model = FSDP(net)
    if hasattr(model, "clip_grad_norm_"):
        model.clip_grad_norm_(1.0)
    elif hasattr(optimizer, "clip_grad_norm_"):
        optimizer.clip_grad_norm_(1.0)
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, fully_shard
import torch.nn.utils as nn_utils


def clip(net, optimizer):
    model = fully_shard(net)
    if isinstance(model, FSDPModule):
        nn_utils.clip_grad_norm_(model.parameters(), 1.0)
    elif hasattr(optimizer, "clip_grad_norm_"):
        optimizer.clip_grad_norm_(1.0)
""",
    ),
]

KEEP = [
    Keep(
        title="a method of something else",
        source="""\
if hasattr(optimizer, "clip_grad_norm_"):
    optimizer.clip_grad_norm_(1.0)
""",
    ),
    Keep(
        title="a project that wraps its models elsewhere",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def is_sharded(model):
    return isinstance(model, FSDP)
""",
        left=True,
    ),
    Keep(
        title="FSDP2's class",
        source="""\
from torch.distributed.fsdp import FSDPModule

sharded = isinstance(model, FSDPModule)
""",
    ),
    Keep(
        title="another wrapper",
        source="""\
from torch.nn.parallel import DistributedDataParallel

wrapped = isinstance(model, DistributedDataParallel)
""",
    ),
    Keep(
        title="versions of something else",
        source="""\
from torch.distributed.fsdp import FSDPModule


def attention_version(model):
    if hasattr(model, "rotary"):
        return 1
    elif isinstance(model, FSDPModule):
        return 2
    return 0


def prepare(model):
    if attention_version(model) == 1:
        model.rotary.reset()
""",
    ),
    Keep(
        title="a branch for FSDP2 alone",
        source="""\
from torch.distributed.fsdp import FSDPModule


def version(model):
    if isinstance(model, FSDPModule):
        return 2
    return 0
""",
    ),
    Keep(
        title="classes in general",
        source="""\
def same(first, second):
    return type(first) == type(second)
""",
    ),
]

NEW_NAMES = {FSDP: "FSDPModule", "MixedPrecision": "MixedPrecisionPolicy"}


def decide(site: Site, study: Study) -> Decision:
    kind, _, rest = site.construct.partition("(")
    if kind == VERSION:
        return _version(site, study)
    if kind == "compared":
        return _compared(site, study)
    if kind == "hasattr":
        return _has_method(site, study)
    old = rest.rstrip(")")
    models = frozenset(study.constructors.values())
    if kind == "isinstance" and isinstance(site.node, ast.Call):
        models = study.models_of_static(site.node.args[0], site.module).constructors
    if not models:
        return study.left(
            site,
            RULE.code,
            study.no_models,
            "give the path that wraps the model as well",
        )
    branch = next((b for b in study.branches if b.asks is site.node), None)
    if branch is not None:
        return _branch(branch, site, study)
    new = NEW_NAMES.get(old, "OffloadPolicy")
    proposal = study.proposal()
    name = proposal.name(site.module, PACKAGE, new, site.reference)
    assert isinstance(site.reference, ast.expr)
    proposal.replace(site.module, site.reference, code("{n}", n=name))
    return study.rewritten(site, RULE.code, new, proposal, models=models)


def _has_method(site: Site, study: Study) -> Decision:
    """``hasattr(model, "no_sync")`` said that it is FSDP's: FSDP2 models have no such methods."""
    assert isinstance(site.node, ast.Call)
    assert site.receiver is not None
    found = study.models(site.receiver, site.module)
    proposal = study.proposal()
    name = proposal.name(site.module, PACKAGE, "FSDPModule", site.node)
    new = code("isinstance({m}, {n})", m=ast.unparse(site.receiver), n=name)
    if not found.certain:
        new = code("({i} or {h})", i=new, h=ast.unparse(site.node))
    proposal.replace(site.module, site.node, new)
    models = found.constructors
    return study.rewritten(site, RULE.code, "isinstance FSDPModule", proposal, models=models)


def _compared(site: Site, study: Study) -> Decision:
    """``type(model) == FSDP``: an FSDP2 model has a class of its own for each class it shards."""
    models = frozenset(study.constructors.values())
    node = site.node
    assert isinstance(node, ast.Compare)
    sides = [node.left, *node.comparators]
    other = next((s for s in sides if s is not site.reference), None)
    simple = len(sides) == 2 and isinstance(node.ops[0], (ast.Eq, ast.NotEq, ast.Is, ast.IsNot))
    asked = other.args[0] if isinstance(other, ast.Call) and len(other.args) == 1 else None
    function = other.func if isinstance(other, ast.Call) else None
    known = isinstance(function, ast.Name) and function.id == "type"
    if not simple or not known or asked is None or not models:
        return study.left(
            site,
            RULE.code,
            "classes are compared, and an FSDP2 model is of another class",
            "ask isinstance(model, FSDPModule)",
            models=models,
            quiet=True,
        )
    proposal = study.proposal()
    name = proposal.name(site.module, PACKAGE, "FSDPModule", site.reference)
    no = "not " if isinstance(node.ops[0], (ast.NotEq, ast.IsNot)) else ""
    new = code("{no}isinstance({m}, {n})", no=no, m=asked, n=name)
    proposal.replace(site.module, node, new)
    return study.rewritten(site, RULE.code, "isinstance FSDPModule", proposal, models=models)


def _branch(branch: Branch, site: Site, study: Study) -> Decision:
    """Migrated models take the branch that the project has for FSDP2."""
    models = frozenset(study.constructors.values())
    proposal = study.proposal()
    proposal.drop_branch(site.module, branch.node)
    proposal.mark(site.module, branch.head.test, RULE.code, sentences(TAKES_OTHER))
    decision = study.rewritten(
        site, RULE.code, "the branch for FSDP2 is left", proposal, models=models
    )
    return replace(decision, outcome=Outcome.REVIEW, help=TAKES_OTHER)


def _version(site: Site, study: Study) -> Decision:
    """No model is of the version that the project has for FSDP1's."""
    models = frozenset(study.constructors.values())
    branch = next((b for b in study.branches if b.asks is site.node), None)
    if branch is None:  # it builds models
        return study.left(
            site,
            RULE.code,
            "models are wrapped where the model is asked for its version of FSDP",
            "wrap them elsewhere, and run again",
            models=models,
            quiet=True,
        )
    proposal = study.proposal()
    if branch.rest:
        for statement in branch.rest:
            proposal.delete(site.module, statement)
    elif branch.head is branch.node and not branch.node.orelse:
        proposal.delete(site.module, branch.node)
    else:
        proposal.drop_branch(site.module, branch.node)
    return study.rewritten(
        site, RULE.code, "no model is of FSDP1's version any more", proposal, models=models
    )


TAKES_OTHER = "models that were FSDP1 take the branch for FSDP2 now: see that it does all they need"
