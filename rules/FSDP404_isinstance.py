"""Recognise sharded models as `FSDPModule`.

## What changes
`isinstance(m, FullyShardedDataParallel)` becomes `isinstance(m, FSDPModule)`; annotations change
alike. So does `hasattr(m, "clip_grad_norm_")` (or `"no_sync"`), where it tells FSDP1 models.

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

from fsdp_migrate import quoted
from fsdp_migrate.around import spelled
from fsdp_migrate.branches import Branch
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
        "annotation(MixedPrecision)",
        "annotation(CPUOffload)",
        "quoted annotation",
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
    Example(
        title="annotations in quotes",
        before="""\
from typing import Optional, cast

import torch.distributed.fsdp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net, precision: "torch.distributed.fsdp.MixedPrecision") -> "FSDP":
    return cast("FSDP", FSDP(net))


def save(model: "Optional[FSDP]", path): ...
""",
        after="""\
from typing import Optional, cast

import torch.distributed.fsdp
from torch.distributed.fsdp import FSDPModule, fully_shard


def build(net, precision: "torch.distributed.fsdp.MixedPrecisionPolicy") -> "FSDPModule":
    return cast("FSDPModule", fully_shard(net))


def save(model: "Optional[FSDPModule]", path): ...
""",
    ),
    Example(
        title="an annotation in quotes of what FSDP2 has not",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def build(net, strategy: "ShardingStrategy"):
    return FSDP(net)
""",
        after="""\
from torch.distributed.fsdp import ShardingStrategy, fully_shard


# TODO(fsdp-migrate FSDP404): FSDP2 has no ShardingStrategy. Name what the annotated code takes now.
def build(net, strategy: "ShardingStrategy"):
    return fully_shard(net)
""",
        outcome=Outcome.LEFT,
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
    Keep(
        title="quotes that are no annotations",
        source="""\
from typing import Annotated, Literal

from torch.distributed.fsdp import FSDPModule, fully_shard

FSDP = FSDPModule


def build(net, kind: Literal["FSDP"] = "FSDP", note: Annotated[str, "FSDP"] = "FSDP") -> "FSDP":
    return fully_shard(net)
""",
    ),
    Keep(
        title="an annotation in quotes without a model",
        source="""\
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(model: "FSDP", path): ...
""",
        left=True,
    ),
]

NEW_NAMES = {FSDP: "FSDPModule", "MixedPrecision": "MixedPrecisionPolicy"}
TYPES = {**NEW_NAMES, "CPUOffload": "OffloadPolicy"}


def decide(site: Site, study: Study) -> Decision:
    kind, _, rest = site.construct.partition("(")
    if kind == spelled.QUOTED:
        return _quoted(site, study)
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
    branch = next((b for b in study.branches if b.node.test is site.node), None)
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


def _quoted(site: Site, study: Study) -> Decision:
    """An annotation in quotes: the names in it are replaced where all of them can be."""
    assert isinstance(site.node, ast.Constant)
    models = frozenset(study.constructors.values())
    text = str(site.node.value)
    found = [
        each
        for annotation in quoted.in_annotations(site.module.table)
        if annotation.string is site.node
        for each in spelled.references(annotation, study, site.module)
    ]
    others = [old for node, old in found if old not in TYPES or _deeper(node)]
    if others or not models or not text.isascii() or "\n" in text:
        missing = others[0].removeprefix("private:") if others else ""
        reason = f"FSDP2 has no {missing}" if models and others else study.no_models
        return study.left(
            site,
            RULE.code,
            reason or "the annotation is not plain text",
            "name what the annotated code takes now",
        )
    proposal = study.proposal()
    for node, old in sorted(found, key=lambda item: -item[0].col_offset):
        if isinstance(node, ast.Attribute):
            new = f"{ast.unparse(node.value)}.{TYPES[old]}"
        else:
            new = proposal.name(site.module, PACKAGE, TYPES[old], site.node)
        text = text[: node.col_offset] + new + text[node.end_col_offset :]
    quote = "'" if site.module.source.segment(site.node).endswith("'") else '"'
    proposal.replace(site.module, site.node, code("{t}", t=f"{quote}{text}{quote}"))
    return study.rewritten(site, RULE.code, text, proposal, models=models)


def _deeper(node: ast.expr) -> bool:
    """``torch.distributed.fsdp.api.MixedPrecision``: FSDP2's names are not in FSDP1's modules."""
    owner = ast.unparse(node.value) if isinstance(node, ast.Attribute) else ""
    return owner.startswith("torch.") and owner != PACKAGE


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


TAKES_OTHER = "models that were FSDP1 take the branch for FSDP2 now: see that it does all they need"
