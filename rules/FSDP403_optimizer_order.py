"""Build the optimizer after the model is sharded, from sharded parameters.

## What changes
An optimizer that was built from `model.parameters()` before the model was wrapped moves behind the
wrapping, when nothing in between uses it; lists of parameters that are used later do too. Where the model may have run before its optimizer is
built (an evaluation to begin with, a forward to learn shapes), or is given more of its parameters
(`add_param_group`), `reshard_parameters(model)` comes first.

## Why
`fully_shard` replaces every parameter. An optimizer built before it holds the old ones: it steps,
and the model never changes, without an error. FSDP1 with `use_orig_params=True` kept the
parameters, so such programs worked.

After a forward that no backward follows, the root's parameters are whole tensors, which the next
forward puts away again: an optimizer built from them never changes the model, without an error.
FSDP1 gave the optimizer its sharded parameters at any time.

## What stays for you
Optimizers that are built elsewhere or used before the model is wrapped: the migration of that model
is held back until you move them, as is that of a model that keeps parameters in a list of its own
(`self.decayed = [self.head.weight]`). A model that is run in another function than the one that calls
for the optimizer is not seen.

## Since torch
2.6

## References
- https://github.com/pytorch/pytorch/issues/149205
- https://github.com/huggingface/accelerate/tree/main/benchmarks/fsdp2
"""

import ast

from fsdp_migrate.analysis.values import Class
from fsdp_migrate.families.parameters import attributes, collected
from fsdp_migrate.families.training_loop import ordering, running
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Constructor, Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Finder, Keep, Rule

RULE = Rule(
    code="FSDP403",
    name="optimizer_order",
    handles=("early optimizer", "early parameters", "kept parameters", "late optimizer"),
    finders=(
        Finder(10, ordering.find_early_optimizers, always=True),
        Finder(20, collected.find_early_parameters, always=True),
        Finder(40, running.find_late_optimizers),
        Finder(230, in_project=collected.find_kept_parameters),
    ),
)

EXAMPLES = [
    Example(
        title="a straight run of statements",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = Net()
# decay everything
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model = FSDP(model, use_orig_params=True)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

model = Net()
model = fully_shard(model)
# decay everything
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
""",
    ),
    Example(
        title="the model is wrapped by a function",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model):
    return FSDP(model, use_orig_params=True)


def main(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net = shard(net)
    return net, optimizer
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard


def shard(model):
    return fully_shard(model)


def main(net):
    net = shard(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return net, optimizer
""",
    ),
    Example(
        title="FSDP1 never trained it",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model = FSDP(model)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

model = Net()
model = fully_shard(model)
# TODO(fsdp-migrate FSDP403): FSDP1 without use_orig_params=True gave this optimizer parameters that it never trained; now it trains them.
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="parameters are listed before",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(net, limit):
    trained = [p for p in net.parameters() if p.requires_grad]
    model = FSDP(net, use_orig_params=True)
    return model, torch.optim.AdamW(trained, lr=1e-3)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard


def main(net, limit):
    model = fully_shard(net)
    trained = [p for p in net.parameters() if p.requires_grad]
    return model, torch.optim.AdamW(trained, lr=1e-3)
""",
    ),
    Example(
        title="parameters are sorted before",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(model):
    decay, other = [], []
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            other.append(parameter)
        else:
            decay.append(parameter)
    model = FSDP(model, use_orig_params=True)
    groups = [{"params": decay}, {"params": other, "weight_decay": 0.0}]
    return model, torch.optim.AdamW(groups)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard


def main(model):
    decay, other = [], []
    model = fully_shard(model)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            other.append(parameter)
        else:
            decay.append(parameter)
    groups = [{"params": decay}, {"params": other, "weight_decay": 0.0}]
    return model, torch.optim.AdamW(groups)
""",
    ),
    Example(
        title="parameter groups are made before",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(model):
    decay = [p for p in model.parameters() if p.ndim > 1]
    groups = [{"params": decay}]
    model = FSDP(model, use_orig_params=True)
    return model, torch.optim.AdamW(groups)
""",
        after="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(model):
    # TODO(fsdp-migrate FSDP403): Parameters are collected before their model is wrapped, and they are passed on before that. Collect them after the model is sharded, which makes new ones.
    decay = [p for p in model.parameters() if p.ndim > 1]
    groups = [{"params": decay}]
    model = FSDP(model, use_orig_params=True)
    return model, torch.optim.AdamW(groups)
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="the model is evaluated first",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


@torch.no_grad()
def evaluate(model, batches):
    return sum(model(batch).mean() for batch in batches)


def main(net, batches):
    model = FSDP(net, use_orig_params=True)
    print("before training", evaluate(model, batches))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimizer
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import reshard_parameters


@torch.no_grad()
def evaluate(model, batches):
    return sum(model(batch).mean() for batch in batches)


def main(net, batches):
    model = fully_shard(net)
    print("before training", evaluate(model, batches))
    reshard_parameters(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimizer
""",
        support=("reshard_parameters",),
    ),
    Example(
        title="parameters that are added later",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(net, batches):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-3)
    for epoch in range(2):
        if epoch == 1:
            body = [p for n, p in model.named_parameters() if "head" not in n]
            optimizer.add_param_group({"params": body, "lr": 1e-4})
        for batch in batches:
            model(batch).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            print("after", epoch, model(batches[0]).mean())
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import reshard_parameters


def main(net, batches):
    model = fully_shard(net)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-3)
    for epoch in range(2):
        if epoch == 1:
            reshard_parameters(model)
            body = [p for n, p in model.named_parameters() if "head" not in n]
            optimizer.add_param_group({"params": body, "lr": 1e-4})
        for batch in batches:
            model(batch).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            print("after", epoch, model(batches[0]).mean())
""",
        support=("reshard_parameters",),
    ),
    Example(
        title="parameters are sorted into groups after a forward",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, net, example):
        self.model = FSDP(net, use_orig_params=True)
        self.classes = self.model(example).shape[-1]
        decay, other = [], []
        for name, parameter in self.model.named_parameters():
            (other if name.endswith("bias") else decay).append(parameter)
        groups = [{"params": decay}, {"params": other, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import reshard_parameters


class Trainer:
    def __init__(self, net, example):
        self.model = fully_shard(net)
        self.classes = self.model(example).shape[-1]
        decay, other = [], []
        reshard_parameters(self.model)
        for name, parameter in self.model.named_parameters():
            (other if name.endswith("bias") else decay).append(parameter)
        groups = [{"params": decay}, {"params": other, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups)
""",
        support=("reshard_parameters",),
    ),
    Example(
        title="a model that keeps parameters in a list, if FSDP1 kept them",
        before="""\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.body, self.head = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.decayed = [self.head.weight]

    def forward(self, x):
        return self.head(self.body(x)).mean() + sum(p.square().sum() for p in self.decayed)


def build(dim, original):
    return FSDP(Net(dim), use_orig_params=original)
""",
        after="""\
from torch import nn
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.body, self.head = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.decayed = [self.head.weight]

    def forward(self, x):
        return self.head(self.body(x)).mean() + sum(p.square().sum() for p in self.decayed)


def build(dim, original):
    # TODO(fsdp-migrate FSDP403): Net.decayed goes on holding the parameters that fully_shard replaces, which train nothing; FSDP1 kept them with use_orig_params=True: take the parameters from their layers where they are used.
    return fully_shard(Net(dim))
""",
        outcome=Outcome.REVIEW,
    ),
]

KEEP = [
    Keep(
        title="a model that keeps parameters in a list",
        source="""\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.body, self.head = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.decayed = list(self.head.parameters())

    def forward(self, x):
        return self.head(self.body(x)).mean() + sum(p.square().sum() for p in self.decayed)


def build(dim):
    return FSDP(Net(dim), use_orig_params=True)
""",
        left=True,
    ),
    Keep(
        title="a list of parameters without FSDP",
        source="""\
from torch import nn


class Net(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.head = nn.Linear(dim, dim)
        self.decayed = [self.head.weight]

    def forward(self, x):
        return self.head(x).mean() + sum(p.square().sum() for p in self.decayed)
""",
    ),
    Keep(
        title="the optimizer is built after",
        source="""\
import torch

model = wrap(model)
optimizer = torch.optim.AdamW(model.parameters())
""",
    ),
    Keep(
        title="parameters that are counted before",
        source="""\
from torch.distributed.fsdp import fully_shard

total = sum(p.numel() for p in model.parameters())
fully_shard(model)
print(total)
""",
    ),
    Keep(
        title="an optimizer of another model",
        source="""\
import torch

optimizer = torch.optim.AdamW(discriminator.parameters())
generator = wrap(generator)
""",
    ),
    Keep(
        title="parameters listed before FSDP2 shards the model",
        source="""\
from torch.distributed.fsdp import fully_shard

trained = [p for p in model.parameters() if p.requires_grad]
fully_shard(model)
print(len(trained))
""",
    ),
    Keep(
        title="parameters of a plain model",
        source="""\
import torch

trained = list(model.parameters())
model = torch.compile(model)
optimizer = torch.optim.AdamW(trained)
""",
    ),
    Keep(
        title="a model that FSDP2 sharded, evaluated first",
        source="""\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
evaluate(model)
optimizer = torch.optim.AdamW(model.parameters())
""",
    ),
    Keep(
        title="parameters of a model that FSDP2 sharded, added later",
        source="""\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
optimizer = torch.optim.AdamW(model.head.parameters())
evaluate(model)
optimizer.add_param_group({"params": model.body.parameters()})
""",
    ),
    Keep(
        title="a plain model, evaluated first",
        source="""\
import torch

model(example)
optimizer = torch.optim.AdamW(model.parameters())
""",
    ),
    Keep(
        title="something uses it in between",
        source="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = Net()
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
model = FSDP(model, use_orig_params=True)
""",
        left=True,
    ),
]


def decide(site: Site, study: Study) -> Decision:
    assert isinstance(site.node, ast.Call)
    if site.construct == running.CONSTRUCT:
        return _late(site, site.node, study)
    if site.construct == collected.IN_MODELS:
        return _kept(site, study)
    if site.construct == collected.CONSTRUCT:
        return _early(site, site.node, study)
    found = ordering.early_optimizer(site.node, site.module, study)
    assert found is not None
    models = _models(found.wrap, site, study)
    built, wrapped = site.statement, site.module.table.statement(found.wrap)
    problem = ordering.move_problem(built, wrapped, site.module)
    if problem:
        return study.left(
            site,
            RULE.code,
            f"the optimizer is built before its model is wrapped, and {problem}",
            "build it after the model is sharded, or it trains nothing",
            models=models,
            quiet=True,
        )
    proposal = study.proposal()
    proposal.move_after(site.module, built, wrapped)
    review = ""
    if not all(_keeps_parameters(c, study) for c in models):
        review = (
            "FSDP1 without use_orig_params=True gave this optimizer parameters that it never "
            "trained; now it trains them"
        )
    return study.rewritten(
        site, RULE.code, "moved behind the sharding", proposal, models=models, review=review
    )


def _kept(site: Site, study: Study) -> Decision:
    """Parameters in a list of the model's own, which FSDP1 may have kept."""
    constructor = next(c for c in study.constructors.values() if c.call is site.receiver)
    assert isinstance(site.reference, ast.ClassDef)
    module = next(m for m in study.project.modules if site.reference in m.table.scopes)
    kept = collected.kept_by(Class(site.reference, module))
    named = ", ".join(f"{site.reference.name}.{name}" for name in kept)
    reason = (
        f"{named} goes on holding the parameters that fully_shard replaces, which train nothing"
    )
    advice = "take the parameters from their layers where they are used"
    if attributes.keeps(constructor, study) is False:  # use_orig_params is a setting
        return study.rewritten(
            site,
            RULE.code,
            "FSDP1 may have kept them",
            models=[constructor],
            review=f"{reason}; FSDP1 kept them with use_orig_params=True: {advice}",
        )
    return study.left(site, RULE.code, reason, advice, models=[constructor], quiet=True)


def _early(site: Site, call: ast.Call, study: Study) -> Decision:
    found = collected.read(call, site.module, study)
    assert found is not None
    models = _models(found.wrap, site, study)
    behind = site.module.table.statement(found.wrap)
    problem = "they are passed on before that"
    if not found.passed_on:
        loop = isinstance(found.statement, ast.For)
        filled = found.names if loop else frozenset()
        problem = ordering.move_problem(found.statement, behind, site.module, filled)
    if problem:
        return study.left(
            site,
            RULE.code,
            f"parameters are collected before their model is wrapped, and {problem}",
            "collect them after the model is sharded, which makes new ones",
            models=models,
            quiet=True,
        )
    proposal = study.proposal()
    proposal.move_after(site.module, found.statement, behind)
    return study.rewritten(site, RULE.code, "moved behind the sharding", proposal, models=models)


def _late(site: Site, call: ast.Call, study: Study) -> Decision:
    found = running.read(call, site.module, study)
    assert found is not None
    proposal = study.proposal()
    function = proposal.support(site.module, "reshard_parameters", found.before)
    lines = [code("{f}({m})", f=function, m=ast.unparse(model)) for model in found.models]
    proposal.insert_before(site.module, found.before, *lines)
    models = {c for m in found.models for c in study.models(m, site.module).constructors}
    return study.rewritten(site, RULE.code, "resharded first", proposal, models=models)


def _models(wrap: ast.Call, site: Site, study: Study) -> frozenset[Constructor]:
    if wrap in study.constructors:
        return frozenset(study.settings_of(study.constructors[wrap]))
    return study.models(wrap, site.module).constructors


def _keeps_parameters(constructor: Constructor, study: Study) -> bool:
    node = constructor.arguments.get("use_orig_params")
    if node is None:
        return False
    flag = study.literal(node, constructor.module)
    return flag is not None and flag.value is True
