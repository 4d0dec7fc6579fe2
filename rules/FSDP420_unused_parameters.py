"""Parts of a model that a step may leave out.

## What changes
With torch 2.13 as target, `model.set_reduce_scatter_unused_params(True, recurse=False)` follows the
sharding of a model whose `forward` runs a part only for some inputs (`if images is not None: x =
self.vision(images)`, `self.experts[index](x)`). For older targets, and where the part may lie in
another unit than the model's own, the constructor is marked.

## Why
FSDP1 gave the parameters of a unit that a step had not used a gradient of zero; FSDP2 gives them
none. Weight decay and the averages of Adam then pass over them, where they went on in FSDP1. Where
ranks use different parts, FSDP2 reduces other gradients on each: of equal sizes it averages those
of unlike parameters, without an error, and otherwise it hangs.

## What stays for you
Marked places: nothing differs if every training step runs the same parts on all ranks and these are
all of them. Otherwise, from torch 2.13, call `set_reduce_scatter_unused_params(True, recurse=False)`
on the units that hold the parts; before it, add the sum of their parameters times zero to what
`forward` returns. Conditions on settings are not looked at, nor are models from outside the project,
nor parts that are units of their own: those that a step leaves out have no gradients in either.

## Since torch
2.6

## References
- https://github.com/pytorch/pytorch/issues/158719
- torch/distributed/fsdp/_fully_shard/_fully_shard.py (`set_reduce_scatter_unused_params`)
"""

from packaging.version import Version

from fsdp_migrate.families.modules import unused
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Finder, Keep, Rule
from fsdp_migrate.planning.shard_plan import placement_problem

RULE = Rule(
    code="FSDP420",
    name="unused_parameters",
    handles=("unused part",),
    finders=(Finder(220, in_project=unused.find_unused_parts),),
)

EXAMPLES = [
    Example(
        title="a part for some inputs",
        before="""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Reader(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Embedding(100, dim)
        self.vision = nn.Linear(3, dim)
        self.head = nn.Linear(dim, 100)

    def forward(self, tokens, images=None):
        x = self.embed(tokens)
        if images is not None:
            x = x + self.vision(images)
        return self.head(x)


def train(batches):
    model = FSDP(Reader(8))
    for batch in batches:
        model(**batch).sum().backward()
""",
        after="""\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


class Reader(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Embedding(100, dim)
        self.vision = nn.Linear(3, dim)
        self.head = nn.Linear(dim, 100)

    def forward(self, tokens, images=None):
        x = self.embed(tokens)
        if images is not None:
            x = x + self.vision(images)
        return self.head(x)


def train(batches):
    # TODO(fsdp-migrate FSDP420): Parameters that a step does not use (Reader.vision) had gradients of zero in FSDP1, and have none now; where ranks use different ones, gradients are mixed up. Unless all are used in every step, call set_reduce_scatter_unused_params(True, recurse=False) of the model, from torch 2.13.
    model = fully_shard(Reader(8))
    for batch in batches:
        model(**batch).sum().backward()
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="experts that no token may reach",
        before="""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Experts(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gate = nn.Linear(dim, 4)
        self.experts = nn.ModuleList([nn.Linear(dim, dim) for _ in range(4)])

    def forward(self, x):
        best = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            chosen = best == index
            if chosen.any():
                out[chosen] = expert(x[chosen])
        return out


class Net(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.blocks = nn.Sequential(Experts(dim), Experts(dim))

    def forward(self, x):
        return self.blocks(x)


model = FSDP(Net(8), auto_wrap_policy=ModuleWrapPolicy({Experts}))
""",
        after="""\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


class Experts(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gate = nn.Linear(dim, 4)
        self.experts = nn.ModuleList([nn.Linear(dim, dim) for _ in range(4)])

    def forward(self, x):
        best = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            chosen = best == index
            if chosen.any():
                out[chosen] = expert(x[chosen])
        return out


class Net(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.blocks = nn.Sequential(Experts(dim), Experts(dim))

    def forward(self, x):
        return self.blocks(x)


# TODO(fsdp-migrate FSDP420): Parameters that a step does not use (Experts.experts) had gradients of zero in FSDP1, and have none now; where ranks use different ones, gradients are mixed up. Unless all are used in every step, call set_reduce_scatter_unused_params(True, recurse=False) of the unit that holds them, from torch 2.13.
model = Net(8)
for module in reversed(list(model.modules())):
    if module is not model and isinstance(module, Experts):
        fully_shard(module)
fully_shard(model)
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="one of many heads",
        before="""\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Tasks(nn.Module):
    def __init__(self, dim, tasks):
        super().__init__()
        self.body = nn.Linear(dim, dim)
        self.heads = nn.ModuleDict({task: nn.Linear(dim, 2) for task in tasks})

    def forward(self, x, task):
        x = self.body(x)
        return self.heads[task](x)


def build(tasks):
    return FSDP(Tasks(8, tasks), use_orig_params=True)
""",
        after="""\
from torch import nn
from torch.distributed.fsdp import fully_shard


class Tasks(nn.Module):
    def __init__(self, dim, tasks):
        super().__init__()
        self.body = nn.Linear(dim, dim)
        self.heads = nn.ModuleDict({task: nn.Linear(dim, 2) for task in tasks})

    def forward(self, x, task):
        x = self.body(x)
        return self.heads[task](x)


def build(tasks):
    # TODO(fsdp-migrate FSDP420): Parameters that a step does not use (Tasks.heads) had gradients of zero in FSDP1, and have none now; where ranks use different ones, gradients are mixed up. Unless all are used in every step, call set_reduce_scatter_unused_params(True, recurse=False) of the model, from torch 2.13.
    return fully_shard(Tasks(8, tasks))
""",
        outcome=Outcome.REVIEW,
    ),
]

KEEP = [
    Keep(
        title="a part for some inputs, without FSDP",
        source="""\
from torch import nn


class Reader(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.vision = nn.Linear(3, dim)

    def forward(self, x, images=None):
        if images is not None:
            x = x + self.vision(images)
        return x


model = Reader(8)
""",
    ),
    Keep(
        title="FSDP2's own setter",
        source="""\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
model.set_reduce_scatter_unused_params(True)
""",
    ),
    Keep(
        title="DDP is told by itself",
        source="""\
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(model, find_unused_parameters=True)
""",
    ),
]

SETTER = "set_reduce_scatter_unused_params"
KNOWN = Version("2.13")  # to have the setter


def decide(site: Site, study: Study) -> Decision:
    constructor = next(c for c in study.constructors.values() if c.call is site.receiver)
    found = unused.of(constructor, study)
    assert found is not None
    by_root = unused.is_owned_by_root(found.unused, constructor, study)
    plan = study.plans.get(constructor)
    placed = plan is not None and not placement_problem(constructor)
    if study.target >= KNOWN and by_root and placed:
        assert plan is not None
        plan.after.append(code("{m}.{s}(True, recurse=False)", m=plan.model, s=SETTER))
        message = "parameters that a step does not use get gradients of zero, as in FSDP1"
        return study.rewritten(site, RULE.code, message, models=[constructor])
    named = ", ".join(f"{u.cls.node.name}.{part}" for u in found.unused for part in u.parts[:2])
    owner = "the model" if by_root else "the unit that holds them"
    return study.rewritten(
        site,
        RULE.code,
        f"a step may not use {named}",
        models=[constructor],
        review=f"parameters that a step does not use ({named}) had gradients of zero in FSDP1, and "
        "have none now; where ranks use different ones, gradients are mixed up. Unless all are "
        f"used in every step, call {SETTER}(True, recurse=False) of {owner}, from torch 2.13",
    )
