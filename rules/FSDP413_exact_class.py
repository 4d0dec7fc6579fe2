"""Test for the class of a module with `isinstance`.

## What changes
Of the modules of a sharded model, `type(m) is Block` becomes `isinstance(m, Block)`, and
`type(m) in {Block, Head}` becomes `isinstance(m, (Block, Head))`. The name of a class is compared
without the prefix that sharding gives it: `type(m).__name__.removeprefix("FSDP") == "Block"`. A
comparison with the name of FSDP1's wrapper becomes `isinstance(m, FSDPModule)`. A name that something
is looked up by, of `self` in a module of the model or of `model.module`, loses the prefix as well.

## Why
`fully_shard` gives every module that it is called on a new class, `FSDPBlock`, derived from
`FSDPModule` and `Block`. The old test is false then, without an error. In FSDP1 it was true of the
module inside the wrapper, when all modules were looked through.

## What stays for you
Classes that others in the project are derived from: `isinstance` is true for those too, and the
place is marked. Tables by class (`table[type(m)]`), and `super(type(self), self)`.

## Since torch
2.6

## References
- torch/distributed/fsdp/_fully_shard/_fully_shard.py (`fully_shard`, at its end)
"""

import ast

from fsdp_migrate.analysis.values import Display, Value
from fsdp_migrate.families.modules import classes
from fsdp_migrate.families.wrapping import models
from fsdp_migrate.fsdp1.api import PACKAGE
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code, join
from fsdp_migrate.planning.model import Constructor, Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Finder, Keep, Rule

RULE = Rule(
    code="FSDP413",
    name="exact_class",
    handles=("exact class", "class name", "class as a key"),
    finders=(
        Finder(150, classes.find_exact_class_tests),
        Finder(160, classes.find_class_names),
        Finder(170, classes.find_class_keys),
    ),
)

EXAMPLES = [
    Example(
        title="the blocks of a model",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from layers import Block


def blocks(net):
    model = FSDP(net)
    return [m for m in model.modules() if type(m) is Block]
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from layers import Block


def blocks(net):
    model = fully_shard(net)
    return [m for m in model.modules() if isinstance(m, Block)]
""",
    ),
    Example(
        title="one of several classes",
        before="""\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from layers import Norm

NORMS = [Norm, nn.LayerNorm]


def freeze(net):
    model = FSDP(net, use_orig_params=True)
    for name, module in model.named_modules():
        if module.__class__ in NORMS:
            module.requires_grad_(False)
        elif type(module) not in {nn.Linear, nn.Embedding}:
            print(name)
""",
        after="""\
from torch import nn
from torch.distributed.fsdp import fully_shard

from layers import Norm

NORMS = [Norm, nn.LayerNorm]


def freeze(net):
    model = fully_shard(net)
    for name, module in model.named_modules():
        if isinstance(module, tuple(NORMS)):
            module.requires_grad_(False)
        # TODO(fsdp-migrate FSDP413): The test is now true for subclasses as well, here for the output layer of torch's attention.
        elif not isinstance(module, (nn.Linear, nn.Embedding)):
            print(name)
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="by the name of the class",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def find(net, args):
    model = FSDP(net)
    return [m for m in model.modules() if m.__class__.__name__ == args.layer]
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def find(net, args):
    model = fully_shard(net)
    return [m for m in model.modules() if m.__class__.__name__.removeprefix("FSDP") == args.layer]
""",
    ),
    Example(
        title="FSDP1's wrapper, by its name",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def units(net):
    model = FSDP(net)
    return [m for m in model.modules() if type(m).__name__ == "FullyShardedDataParallel"]
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, fully_shard


def units(net):
    model = fully_shard(net)
    return [m for m in model.modules() if isinstance(m, FSDPModule)]
""",
    ),
    Example(
        title="a class that others are derived from",
        before="""\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Block(nn.Module):
    pass


class WideBlock(Block):
    pass


def count(module):
    return sum((type(child) == Block) + count(child) for child in module.children())


model = FSDP(nn.Sequential(Block(), WideBlock()))
print(count(model))
""",
        after="""\
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    pass


class WideBlock(Block):
    pass


def count(module):
    # TODO(fsdp-migrate FSDP413): The test is now true for subclasses as well, here for WideBlock.
    return sum((isinstance(child, Block)) + count(child) for child in module.children())


model = fully_shard(nn.Sequential(Block(), WideBlock()))
print(count(model))
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="classes by name, FSDP1's among them",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def is_wrapped(model):
    return type(model).__name__ in ("DistributedDataParallel", "FullyShardedDataParallel")


def build(net):
    model = FSDP(net)
    return model, is_wrapped(model)
""",
        after="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def is_wrapped(model):
    # TODO(fsdp-migrate FSDP413): FSDP1's wrapper is asked for by name, among others, and sharded modules have a class of their own. Test with isinstance.
    return type(model).__name__ in ("DistributedDataParallel", "FullyShardedDataParallel")


def build(net):
    model = FSDP(net)
    return model, is_wrapped(model)
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="names that something is looked up by",
        before="""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

SCALES = {"Block": 0.5}


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layer = nn.Linear(dim, dim)

    def forward(self, x):
        return x + SCALES.get(type(self).__name__, 1.0) * self.layer(x)


def train(dim, config):
    model = FSDP(nn.Sequential(Block(dim), Block(dim)))
    config["architecture"] = model.module.__class__.__name__
    return model
""",
        after="""\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

SCALES = {"Block": 0.5}


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layer = nn.Linear(dim, dim)

    def forward(self, x):
        return x + SCALES.get(type(self).__name__.removeprefix("FSDP"), 1.0) * self.layer(x)


def train(dim, config):
    model = fully_shard(nn.Sequential(Block(dim), Block(dim)))
    config["architecture"] = model.__class__.__name__.removeprefix("FSDP")
    return model
""",
    ),
    Example(
        title="of a module by itself",
        before="""\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layer = nn.Linear(dim, dim)
        self.scale = 0.5 if type(self) is Block else 1.0

    def forward(self, x):
        return x + self.scale * self.layer(x)

    def is_wide(self):
        return type(self) is not Block


def build(dim):
    return FSDP(nn.Sequential(Block(dim), Block(dim)))
""",
        after="""\
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layer = nn.Linear(dim, dim)
        self.scale = 0.5 if type(self) is Block else 1.0

    def forward(self, x):
        return x + self.scale * self.layer(x)

    def is_wide(self):
        return not isinstance(self, Block)


def build(dim):
    return fully_shard(nn.Sequential(Block(dim), Block(dim)))
""",
    ),
]

KEEP = [
    Keep(
        title="a table by class",
        source="""\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

SCALES = {}


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layer = nn.Linear(dim, dim)

    def forward(self, x):
        return x + SCALES.get(type(self), 1.0) * self.layer(x)


SCALES[Block] = 0.5
model = FSDP(Block(4))
""",
        left=True,
    ),
    Keep(
        title="names of classes that nothing shards",
        source="""\
from torch import nn

SCALES = {"Block": 0.5}


class Block(nn.Module):
    def forward(self, x):
        return SCALES.get(type(self).__name__, 1.0) * x
""",
    ),
    Keep(
        title="a plain model",
        source="""\
blocks = [m for m in model.modules() if type(m) is Block]
""",
    ),
    Keep(
        title="a model that FSDP2 sharded",
        source="""\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
blocks = [m for m in model.modules() if type(m) is Block]
""",
    ),
    Keep(
        title="something else than a module",
        source="""\
def flatten(batch):
    if type(batch) is dict:
        return list(batch.values())
    return batch if type(batch) in (list, tuple) else [batch]
""",
    ),
    Keep(
        title="names of classes",
        source="""\
names = [type(m).__name__ for m in model.modules()]
norms = [m for m in model.modules() if "Norm" in type(m).__name__]
""",
    ),
    Keep(
        title="instances",
        source="""\
blocks = [m for m in model.modules() if isinstance(m, Block)]
""",
    ),
    Keep(
        title="before the model is wrapped",
        source="""\
import torch

for module in model.modules():
    if type(module) == torch.nn.Linear:
        torch.nn.init.zeros_(module.bias)
""",
    ),
]

PREFIX = "FSDP"
# Torch derives the output layer of its attention from Linear.
DERIVED_LINEAR = ("MultiheadAttention", "Transformer")


def decide(site: Site, study: Study) -> Decision:
    if site.construct == classes.NAMED:
        return _name(site, study)
    concerned = _concerned(site, study)
    if site.construct == classes.KEY:
        return _left(site, concerned, study, "something is looked up by the class of a module")
    assert isinstance(site.node, ast.Compare)
    test = classes.read(site.node, site.module)
    if classes.names_wrapper(test):
        return _wrapper(site, test, concerned, study)
    proposal = study.proposal()
    if test.by_name:
        if _asks_for_prefix(test):
            return _left(site, concerned, study, "the class is asked for by a name like FSDP2's")
        new = code('{k}.removeprefix("{p}")', k=test.kind, p=PREFIX)
        proposal.replace(site.module, test.kind, new)
        return study.rewritten(
            site, RULE.code, "compared without the prefix", proposal, models=concerned
        )
    wanted, review = _wanted(test, site, concerned, study)
    negation = "not " if test.is_negated else ""
    new = code("{n}isinstance({m}, {c})", n=negation, m=test.subject, c=wanted)
    if negation and isinstance(site.module.table.parents[site.node], ast.Compare):
        return _left(site, concerned, study, "the test is part of another comparison")
    proposal.replace(site.module, site.node, new)
    return study.rewritten(site, RULE.code, "isinstance", proposal, models=concerned, review=review)


def _concerned(site: Site, study: Study) -> frozenset[Constructor]:
    found: frozenset[Constructor] = frozenset()
    if site.receiver is not None:
        found = study.models(site.receiver, site.module).constructors
    return found or frozenset(study.constructors.values())


def _name(site: Site, study: Study) -> Decision:
    """The name of the class as it was before the module was sharded."""
    found = _concerned(site, study)
    assert isinstance(site.node, ast.Attribute)
    proposal = study.proposal()
    message = "without the prefix"
    proposal.replace(site.module, site.node, code('{k}.removeprefix("{p}")', k=site.node, p=PREFIX))
    return study.rewritten(site, RULE.code, message, proposal, models=found)


def _wrapper(
    site: Site, test: classes.Test, models: frozenset[Constructor], study: Study
) -> Decision:
    if test.is_membership:
        return _left(site, models, study, "FSDP1's wrapper is asked for by name, among others")
    proposal = study.proposal()
    name = proposal.name(site.module, PACKAGE, "FSDPModule", site.node)
    assert isinstance(site.node, ast.expr)
    negation = "not " if test.is_negated else ""
    new = code("{n}isinstance({m}, {c})", n=negation, m=test.subject, c=name)
    proposal.replace(site.module, site.node, new)
    return study.rewritten(site, RULE.code, "isinstance", proposal, models=models)


def _left(site: Site, models: frozenset[Constructor], study: Study, reason: str) -> Decision:
    return study.left(
        site,
        RULE.code,
        f"{reason}, and sharded modules have a class of their own",
        "test with isinstance",
        models=models,
        quiet=True,
    )


def _asks_for_prefix(test: classes.Test) -> bool:
    return any(
        isinstance(node, ast.Constant) and str(node.value).startswith(PREFIX)
        for node in ast.walk(test.other)
    )


def _wanted(
    test: classes.Test, site: Site, concerned: frozenset[Constructor], study: Study
) -> tuple[Code, str]:
    """The class or classes as ``isinstance`` takes them, and what may differ."""
    parts, wanted = [test.other], code("{c}", c=test.other)
    if isinstance(test.other, (ast.Tuple, ast.List, ast.Set)):
        parts = test.other.elts
        together = join(", ", [code("{e}", e=e) for e in parts])
        wanted = code("({c})", c=together) if len(parts) > 1 else together
    elif test.is_membership:
        values = study.values(test.other, site.module)
        parts = [e for v in values for e in _elements(v)] or parts
        if any(not isinstance(v.node, ast.Tuple) for v in values):
            wanted = code("tuple({c})", c=test.other)
    subclasses: list[str] = []
    for part in parts:
        known = classes.known_subclasses(part, study, site.module)
        if known is None:
            return wanted, "the test is now true for subclasses as well"
        subclasses += known
        if "torch.nn.Linear" in study.external(part, site.module) and any(
            models.may_contain(c.wrapped, c.module, layer, study)
            for c in concerned
            if "module" in c.arguments
            for layer in DERIVED_LINEAR
        ):
            subclasses.append("the output layer of torch's attention")
    if not subclasses:
        return wanted, ""
    names = " and ".join(dict.fromkeys(subclasses))
    return wanted, f"the test is now true for subclasses as well, here for {names}"


def _elements(value: Value) -> list[ast.expr]:
    node = value.node if isinstance(value, Display) else None
    return node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else []
